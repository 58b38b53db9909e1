"""Attention in parts, merged by log-sum-exp, against one dense softmax with an explicit mask."""

import pytest
import torch

from tauscope_drafter.kernels.availability import has_attention
from tauscope_drafter.network.attention import MIN_CORE_KEYS, attend, causal_attention, visibility
from tauscope_drafter.spec import Window

CPU = torch.device("cpu")
KV, GROUPS, HD = 2, 3, 8


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "window",
    [
        Window(),
        Window(causal=True),
        Window(size=20, causal=True),
        Window(size=20),
        Window(size=3, causal=True),
        Window(size=3),
        Window(size=20, causal=True, per_row=False, in_block=False),
        Window(size=3, per_row=False, in_block=False),
        Window(size=2, in_block=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("anchors", [[1], [3, 4, 5], [70, 71, 90, 99], [2, 60, 100]], ids=str)
def test_parts_merge_to_one_softmax(window: Window, anchors: list[int]) -> None:
    block, length, num = 5, 100, len(anchors)
    query = random(KV, GROUPS, num, block, HD, seed=1)
    context = (random(KV, length, HD, seed=2), random(KV, length, HD, seed=3))
    own = (random(KV, num, block, HD, seed=4), random(KV, num, block, HD, seed=5))
    sees = visibility(anchors, window, offsets=range(block), ends=anchors, device=CPU)
    got = attend(query, context, own, sees=sees, scale=0.3)
    for a, p in enumerate(anchors):
        for i in range(block):
            visible = [t for t in range(p) if in_window(window, p, i, t)]
            mine = [j for j in range(block) if in_block(window, i, j)]
            for kv in range(KV):
                keys = torch.cat((context[0][kv, visible], own[0][kv, a, mine]))
                values = torch.cat((context[1][kv, visible], own[1][kv, a, mine]))
                for group in range(GROUPS):
                    share = torch.softmax(keys @ query[kv, group, a, i] * 0.3, 0)
                    # a hundred float32 terms summed in another order
                    torch.testing.assert_close(got[kv, group, a, i], share @ values, rtol=1e-4, atol=1e-5)


def in_window(window: Window, p: int, i: int, t: int) -> bool:
    if window.size is None:
        return True
    return p + i - t < window.size if window.per_row else t >= p - window.size


def in_block(window: Window, i: int, j: int) -> bool:
    if window.causal and j > i:
        return False
    bounded = window.size is not None and window.per_row and window.in_block
    return not bounded or abs(i - j) < window.size


def test_the_shared_part_is_used_where_it_pays_and_not_where_it_is_short() -> None:
    long = visibility([70, 71], Window(), offsets=range(4), ends=[70, 71], device=CPU)
    assert long.core == (0, 70)
    assert long.fringe == ((70, 71),)
    short = visibility([MIN_CORE_KEYS - 1], Window(), offsets=range(4), ends=[MIN_CORE_KEYS - 1], device=CPU)
    assert short.core == (0, 0)


@pytest.mark.parametrize("window", [None, 3, 100])
def test_causal_attention_equals_a_loop_over_rows(window: int | None) -> None:
    length = 11
    query = random(KV, GROUPS, length, HD, seed=1)
    key, value = random(KV, length, HD, seed=2), random(KV, length, HD, seed=3)
    got = causal_attention(query, key, value, window=window, scale=0.5)
    for kv in range(KV):
        for group in range(GROUPS):
            for row in range(length):
                first = 0 if window is None else max(0, row - window + 1)
                keys, values = key[kv, first : row + 1], value[kv, first : row + 1]
                share = torch.softmax(keys @ query[kv, group, row] * 0.5, 0)
                torch.testing.assert_close(got[kv, group, row], share @ values, rtol=1e-4, atol=1e-5)


def test_the_fused_kernel_is_for_gpus_and_for_tiles_that_fit() -> None:
    assert not has_attention(CPU, torch.bfloat16, 128, rows=64)
    assert not has_attention(torch.device("cuda"), torch.float32, 128, rows=64)  # products would be rounded to tf32
    assert not has_attention(torch.device("cuda"), torch.bfloat16, 128, rows=65)
    assert not has_attention(torch.device("cuda"), torch.bfloat16, 80, rows=16)
