"""The fused kernels against the plain ways, on a GPU, or without one in Triton's interpreter:

TRITON_INTERPRET=1 pytest tests/drafter/test_kernels.py
"""

import os

import pytest
import torch

from tauscope_drafter.network.attention import Spans, attend, visibility
from tauscope_drafter.ranking import plain_top_k
from tauscope_drafter.spec import Window

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from tauscope_drafter.kernels.attention import attend_fused  # noqa: E402
from tauscope_drafter.kernels.ranking import BLOCK, MAX_TOP_K, rank_fused, takes  # noqa: E402

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]  # `make test-gpu` runs them on a device
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
KV, GROUPS, HD, LENGTH, BLOCK_SIZE = 2, 3, 16, 100, 5
# Interpreted in float32: sums in another order. On a device in BF16: weights and outputs rounded to 8 bits.
DTYPE, TOLERANCE = (torch.float32, 1e-5) if INTERPRETED else (torch.bfloat16, 2e-2)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


@pytest.mark.parametrize(
    "window",
    [
        Window(),
        Window(causal=True),
        Window(size=20, causal=True),
        Window(size=20),
        Window(size=70, causal=True),
        Window(size=3),
        Window(size=20, causal=True, per_row=False, in_block=False),
        Window(size=3, per_row=False, in_block=False),
        Window(size=2, in_block=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("anchors", [[1], [3, 4, 5], [63, 64, 65, 99], [2, 60, 100]], ids=str)
@pytest.mark.parametrize("shift", [0, -1])
def test_one_kernel_attends_as_the_merged_parts_do(window: Window, anchors: list[int], shift: int) -> None:
    num = len(anchors)
    # laid out as a projection leaves them: the kernel takes any strides
    query = random(num, BLOCK_SIZE, KV, GROUPS, HD, seed=1).permute(2, 3, 0, 1, 4)
    context = (random(KV, LENGTH, HD, seed=2), random(KV, LENGTH, HD, seed=3))
    own = (random(num, BLOCK_SIZE, KV, HD, seed=4).movedim(2, 0), random(num, BLOCK_SIZE, KV, HD, seed=5).movedim(2, 0))
    ends = [p + shift for p in anchors]
    plain, fused = (
        visibility(anchors, window, offsets=range(BLOCK_SIZE), ends=ends, device=DEVICE, fused=kind)
        for kind in (False, True)
    )
    assert isinstance(fused.spans, Spans)
    expected = attend(query, context, own, sees=plain, scale=0.3)
    found = attend(query, context, own, sees=fused, scale=0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("num_own", [1, 2, 7])
def test_a_single_row_sees_all_own_keys_before_it(num_own: int) -> None:
    anchors = [1, 40, 90]
    query = random(KV, GROUPS, len(anchors), 1, HD, seed=1)
    context = (random(KV, LENGTH, HD, seed=2), random(KV, LENGTH, HD, seed=3))
    own = (random(KV, len(anchors), num_own, HD, seed=4), random(KV, len(anchors), num_own, HD, seed=5))
    place = torch.tensor(anchors, dtype=torch.int32, device=DEVICE)
    found = attend_fused(query, context, own, Spans(place, place, Window()), 0.3)
    for a, p in enumerate(anchors):
        for kv in range(KV):
            keys, values = (torch.cat((c[kv, :p], o[kv, a])).float() for c, o in zip(context, own, strict=True))
            share = torch.softmax(query[kv, :, a, 0].float() @ keys.T * 0.3, -1)
            torch.testing.assert_close(found[kv, :, a, 0].float(), share @ values, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("levels", [1, 3, 1000])
@pytest.mark.parametrize(("width", "k"), [(5000, 8), (33 * BLOCK + 5, 1), (3000, 11), (9000, MAX_TOP_K)])
def test_the_kernels_rank_as_the_plain_way_does(width: int, k: int, levels: int) -> None:
    assert takes(width, k)
    generator = torch.Generator().manual_seed(width)
    logits = (torch.randint(-levels, levels + 1, (3, width), generator=generator).float() / 7).bfloat16().to(DEVICE)
    ids, values, log_mass = rank_fused(logits, k)
    expected = plain_top_k(logits, k)
    assert torch.equal(ids, expected.ids)
    assert torch.equal(values, expected.logits)
    # one rounding of a logit of 143 is 1.5e-5
    torch.testing.assert_close(log_mass, expected.log_mass, rtol=1e-5, atol=3e-5)


def test_columns_that_cannot_be_drafted_come_last_and_both_zeros_are_one_value() -> None:
    logits = torch.full((2, 3000), -torch.inf, device=DEVICE)
    logits[0, 5], logits[1, 700], logits[1, 1] = 1.0, -0.0, 0.0
    ids, values, log_mass = rank_fused(logits, 4)
    assert ids.tolist() == [[5, 0, 1, 2], [1, 700, 0, 2]]
    assert values[:, 2:].isneginf().all()
    torch.testing.assert_close(log_mass.cpu(), torch.tensor([1.0, 2.0]).log() + torch.tensor([1.0, 0.0]))


def test_long_lists_and_short_rows_go_the_plain_way() -> None:
    assert not takes(5000, MAX_TOP_K + 1)
    assert not takes(8 * BLOCK, 8)
