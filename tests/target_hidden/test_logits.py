"""Logits summaries against the whole matrix of logits, sorted slowly."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kit.engine import Reference, Start, job, random_ids, results
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import LogitsSpec
from tauscope_target.logits import ResidentHead, rows_at_once, summarise
from tauscope_target.memory import BLOCK_ELEMENTS, Budget
from tauscope_target.streaming import StreamedHead
from tauscope_target.warm_up import fill_a_pass
from tauscope_wire.errors import DeadlineError

CPU = torch.device("cpu")
TOLERANCE = 1e-4
"""float32 log-probs: sums over a few hundred terms, and a head that is applied to other row blocks."""


def slowly(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids by (logit descending, id ascending), and log-probs in float64."""
    order = np.stack([sorted(range(logits.shape[1]), key=lambda i, row=row: (-row[i], i))[:k] for row in logits])
    wide = logits.astype(np.float64)
    logprobs = (
        wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)
    )
    return order, logprobs


@pytest.mark.parametrize("kind", ["hybrid", "qwen3", "llama"])
def test_the_summary_equals_the_models_own_logits(start: Start, reference: Reference, kind: str) -> None:
    ids = random_ids(45)
    with torch.no_grad():
        logits = reference(kind)(torch.from_numpy(ids).long()[None]).logits[0].numpy()
    order, logprobs = slowly(logits, 5)
    (found,) = results(start(kind), [job(ids, (), logits=LogitsSpec(5, next_token=True))])
    assert found.logits is not None
    assert found.states.shape == (0, 45, 64)
    np.testing.assert_array_equal(found.logits.argmax_ids, logits.argmax(1))
    np.testing.assert_array_equal(found.logits.top_ids, order)
    np.testing.assert_allclose(found.logits.top_logprobs, np.take_along_axis(logprobs, order, 1), atol=TOLERANCE)
    assert found.logits.next_logprobs is not None
    assert len(found.logits.next_logprobs) == 44, "the last position has no next token"
    np.testing.assert_allclose(found.logits.next_logprobs, logprobs[np.arange(44), ids[1:]], atol=TOLERANCE)


def test_positions_cut_the_summary_and_keep_the_next_token_of_the_last_row(start: Start) -> None:
    ids = random_ids(20)
    spec = LogitsSpec(2, next_token=True)
    (whole,) = results(start("llama"), [job(ids, (1,), logits=spec)])
    (part,) = results(start("llama"), [job(ids, (1,), logits=spec, start=5, stop=9)])
    assert part.logits is not None
    assert whole.logits is not None
    assert part.logits.next_logprobs is not None
    assert whole.logits.next_logprobs is not None
    assert len(part.logits.next_logprobs) == 4
    np.testing.assert_array_equal(part.logits.top_ids, whole.logits.top_ids[5:9])
    np.testing.assert_allclose(part.logits.next_logprobs, whole.logits.next_logprobs[5:9], atol=TOLERANCE)


def test_nothing_more_than_asked_comes_back(start: Start) -> None:
    (found,) = results(start("llama"), [job(random_ids(6), (), logits=LogitsSpec(0, next_token=False))])
    assert found.logits is not None
    assert found.logits.top_ids.shape == (6, 0)
    assert found.logits.next_logprobs is None


def test_summaries_of_requests_that_share_a_pass_are_their_own(start: Start) -> None:
    spec = LogitsSpec(3, next_token=True)
    jobs = [job(random_ids(n, seed=n), (), logits=spec) for n in (9, 30, 17)]
    shared = results(start("hybrid"), jobs)
    for one, found in zip(jobs, shared, strict=True):
        (alone,) = results(start("hybrid"), [one])
        assert found.logits is not None
        assert alone.logits is not None
        np.testing.assert_array_equal(found.logits.argmax_ids, alone.logits.argmax_ids)
        np.testing.assert_allclose(found.logits.top_logprobs, alone.logits.top_logprobs, atol=TOLERANCE)


class Head:
    """A head of any blocks over a matrix of logits: the hidden states are one-hot rows."""

    def __init__(self, logits: torch.Tensor, block: int) -> None:
        self._weight = logits.T.contiguous()
        self._block = block
        self.vocab_size = logits.shape[1]
        self.block_vocab = block
        self.block_elements = 8 * block

    def blocks(self):  # type: ignore[no-untyped-def]
        for start in range(0, self.vocab_size, self._block):
            yield start, self._weight[start : start + self._block], None


@pytest.mark.parametrize("block", [1, 3, 7, 64, 100])
def test_ties_are_ordered_by_id_also_across_blocks_of_the_vocabulary(block: int) -> None:
    random = np.random.default_rng(0)
    values = random.integers(-2, 2, (6, 64)).astype(np.float32)  # few values: every row is full of ties
    values[0] = 0.0
    values[1, ::2] = -0.0
    values[2] = -1e30
    logits = torch.from_numpy(values)
    order, logprobs = slowly(values, 10)
    found = summarise(
        torch.eye(6), np.array([0, 63, 1, 62, 30, 31], np.int32), Head(logits, block), top_k=10, scale=lambda x: x
    )
    np.testing.assert_array_equal(found.ids.numpy(), order)
    np.testing.assert_allclose(found.logprobs.numpy(), np.take_along_axis(logprobs, order, 1), atol=TOLERANCE)
    np.testing.assert_allclose(
        found.next_logprobs.numpy(), logprobs[np.arange(6), [0, 63, 1, 62, 30, 31]], atol=TOLERANCE
    )


def test_blocks_of_a_real_head_give_the_summary_of_all_its_logits(start: Start) -> None:
    head = start("llama").parts.anatomy.head
    assert head is not None
    rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    found = summarise(rows, np.zeros(9, np.int32), ResidentHead(head), top_k=4, scale=lambda x: x)
    order, _ = slowly(torch.nn.functional.linear(rows, head.weight).numpy(), 4)
    np.testing.assert_array_equal(found.ids.numpy(), order)


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_a_block_of_logits_of_a_large_vocabulary_stays_within_its_budget(mode: str) -> None:
    weight = torch.empty(248_320, 8)
    head = (
        ResidentHead(SimpleNamespace(weight=weight)) if mode == "resident" else StreamedHead(weight, None, device=CPU)
    )
    widest = max(len(rows) for _, rows, _ in head.blocks())
    assert 1 < rows_at_once(head) * widest <= BLOCK_ELEMENTS[mode]


class Walks(ResidentHead):
    """Counts how often a head travels."""

    walks = 0

    def blocks(self):  # type: ignore[no-untyped-def]
        self.walks += 1
        return super().blocks()


@pytest.mark.parametrize(("most", "walks"), [(64, 1), (20, 3), (7, 8), (1, 56)])
def test_rows_of_many_requests_share_a_walk_through_the_head(start: Start, most: int, walks: int) -> None:
    parts = start("llama").parts
    head = Walks(parts.anatomy.head)
    head.block_elements = most * head.block_vocab
    wanted = [
        job(random_ids(9, seed=1), (), logits=LogitsSpec(3, next_token=True)),
        job(random_ids(30, seed=2), (), logits=LogitsSpec(0, next_token=False)),
        job(random_ids(40, seed=3), (), logits=LogitsSpec(5, next_token=True), start=20, stop=37),
    ]
    plain = results(start("llama"), wanted)
    found = results(TorchEngine(replace(parts, head=head)), wanted)
    assert head.walks == walks  # of 9 + 30 + 17 rows
    for ours, theirs in zip(found, plain, strict=True):
        assert ours.logits is not None
        assert theirs.logits is not None
        np.testing.assert_array_equal(ours.logits.argmax_ids, theirs.logits.argmax_ids)
        np.testing.assert_array_equal(ours.logits.top_ids, theirs.logits.top_ids)
        np.testing.assert_allclose(ours.logits.top_logprobs, theirs.logits.top_logprobs, atol=TOLERANCE)
        if theirs.logits.next_logprobs is None:
            assert ours.logits.next_logprobs is None
        else:
            np.testing.assert_allclose(ours.logits.next_logprobs, theirs.logits.next_logprobs, atol=TOLERANCE)


def test_the_first_full_pass_computes_logits_so_that_no_caller_waits_for_a_compiler(start: Start) -> None:
    engine = start("llama")
    head = Walks(engine.parts.anatomy.head)
    fill_a_pass(TorchEngine(replace(engine.parts, head=head), facts=replace(engine.facts, pass_tokens=256)))
    assert head.walks >= 2  # of the long prompt, and of the batch of shorter ones


def test_chunks_of_a_pass_share_a_walk_and_those_in_host_memory_have_their_own(start: Start) -> None:
    parts = start("llama").parts
    head = Walks(parts.anatomy.head)
    engine = TorchEngine(replace(parts, head=head))
    wanted = [job(random_ids(n, seed=n), (1,), logits=LogitsSpec(2, next_token=True)) for n in (40, 30)]
    expected = results(engine, wanted)
    before = Budget(parts.runner.chunk_tokens, parts.runner.chunk_tokens, None, 0)
    for device_tokens, walks in ((None, 1), (1, 2)):
        head.walks = 0
        parts.runner.adopt(Budget(8192, 40, None, 0, device_tokens=device_tokens))  # a row at a time
        try:
            found = results(engine, wanted)
        finally:
            parts.runner.adopt(before)
        assert head.walks == walks
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.logits is not None
            assert theirs.logits is not None
            np.testing.assert_array_equal(ours.logits.top_ids, theirs.logits.top_ids)
            np.testing.assert_allclose(ours.logits.top_logprobs, theirs.logits.top_logprobs, atol=TOLERANCE)


def test_a_pass_that_nobody_waits_for_stops_between_journeys_of_the_head(start: Start) -> None:
    parts = start("llama").parts
    head = Walks(parts.anatomy.head)
    head.block_elements = 10 * head.block_vocab
    wanted = job(random_ids(40), (), logits=LogitsSpec(2, next_token=True))
    gone = replace(wanted, is_cancelled=lambda: head.walks == 2)
    (outcome,) = TorchEngine(replace(parts, head=head)).execute([gone])
    assert isinstance(outcome, DeadlineError)
    assert head.walks == 2  # of four
