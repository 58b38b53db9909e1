"""Generation against transformers' own greedy loop, and the rules of its end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kit.engine import Reference, Start, random_ids, results
from kit.engine import job as hidden_job
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import GenerateJob, GenerateResult
from tauscope_wire.errors import ErrorCode, TauscopeError


def generate(engine: TorchEngine, ids: np.ndarray, **fields: Any) -> GenerateResult:
    defaults: dict[str, Any] = {
        "max_new_tokens": 12,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        "stop_token_ids": frozenset(),
        "tail_tokens": 0,
    }
    job = GenerateJob(token_ids=ids, **(defaults | fields))
    while True:
        (outcome,) = engine.execute([job])
        assert isinstance(outcome, GenerateResult), outcome
        if outcome.session is None:
            return outcome
        job = replace(job, session=outcome.session)


def greedy_without_cache(model: Any, ids: np.ndarray, count: int) -> list[int]:
    """Slow and obvious: the whole sequence again for every token."""
    sequence = ids.tolist()
    for _ in range(count):
        with torch.no_grad():
            sequence.append(int(model(torch.tensor([sequence])).logits[0, -1].argmax()))
    return sequence[len(ids) :]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3", "llama"])
def test_greedy_equals_recomputing_everything_for_every_token(start: Start, reference: Reference, kind: str) -> None:
    ids = random_ids(70, seed=3)
    found = generate(start(kind), ids)
    assert found.token_ids == greedy_without_cache(reference(kind), ids, 12)
    assert found.finish_reason == "length"


def test_a_prompt_fed_in_chunks_gives_the_same_tokens(start: Start) -> None:
    engine = start("hybrid")
    ids = random_ids(70, seed=3)
    expected = generate(engine, ids).token_ids
    before = engine.parts.runner.chunk_tokens
    try:
        engine.parts.runner.chunk_tokens = 33
        assert generate(engine, ids).token_ids == expected
    finally:
        engine.parts.runner.chunk_tokens = before


def test_the_first_stop_id_ends_the_text_and_belongs_to_it(start: Start) -> None:
    free = generate(start("llama"), random_ids(20)).token_ids
    stop = free[4]
    found = generate(start("llama"), random_ids(20), stop_token_ids=frozenset({stop}))
    assert found.token_ids == free[: free.index(stop) + 1]
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("ended", ["stop", "length"])
def test_the_tail_continues_behind_the_end_and_is_kept_apart(start: Start, ended: str) -> None:
    free = generate(start("llama"), random_ids(20), max_new_tokens=16).token_ids
    if ended == "stop":
        text = free[: free.index(free[4]) + 1]
        found = generate(start("llama"), random_ids(20), stop_token_ids=frozenset({free[4]}), tail_tokens=5)
    else:
        text = free[:8]
        found = generate(start("llama"), random_ids(20), max_new_tokens=8, tail_tokens=5)
    assert found.finish_reason == ended
    assert found.token_ids == text
    assert found.tail_token_ids == free[len(text) : len(text) + 5]


def test_sampling_is_repeatable_by_seed_and_differs_between_seeds(start: Start) -> None:
    options = {"temperature": 1.0, "max_new_tokens": 24}
    one, again, other = (generate(start("llama"), random_ids(9), seed=s, **options).token_ids for s in (1, 1, 2))
    assert one == again
    assert one != other


def test_top_k_of_one_and_a_tiny_nucleus_are_greedy(start: Start) -> None:
    greedy = generate(start("llama"), random_ids(9)).token_ids
    assert generate(start("llama"), random_ids(9), temperature=1.0, top_k=1).token_ids == greedy
    assert generate(start("llama"), random_ids(9), temperature=1.0, top_p=1e-9).token_ids == greedy


def test_a_cancelled_generation_stops_at_its_next_token(start: Start) -> None:
    asked = iter(range(100))
    job = GenerateJob(random_ids(5), 1000, 0.0, 1.0, 0, 0, frozenset(), 0, is_cancelled=lambda: next(asked) > 5)
    (outcome,) = start("llama").execute([job])
    assert isinstance(outcome, TauscopeError)
    assert outcome.code is ErrorCode.CANCELLED
    assert next(asked) < 10


def test_a_long_generation_comes_in_slices_that_other_work_may_come_between(start: Start) -> None:
    """Passes between the slices change nothing: the hybrid's cache is the session's own."""
    engine = start("hybrid")
    whole = generate(engine, random_ids(30), max_new_tokens=40).token_ids
    job = GenerateJob(random_ids(30), 40, 0.0, 1.0, 0, 0, frozenset(), 0)
    lengths = []
    while True:
        (outcome,) = engine.execute([job])
        assert isinstance(outcome, GenerateResult)
        lengths.append(len(outcome.token_ids))
        results(engine, [hidden_job(random_ids(50, seed=1), (7,)), hidden_job(random_ids(9, seed=2), (2,))])
        if outcome.session is None:
            break
        job = replace(job, session=outcome.session)
    assert lengths == [16, 32, 40]
    assert outcome.token_ids == whole


def test_two_generations_take_turns_and_stay_their_own(start: Start) -> None:
    engine = start("hybrid")
    expected = [generate(engine, random_ids(n, seed=n), max_new_tokens=20).token_ids for n in (11, 40)]
    jobs = [GenerateJob(random_ids(n, seed=n), 20, 0.0, 1.0, 0, 0, frozenset(), 0) for n in (11, 40)]
    first = engine.execute(jobs)
    second = engine.execute([replace(j, session=r.session) for j, r in zip(jobs, first, strict=True)])  # type: ignore[union-attr]
    assert [r.token_ids for r in second] == expected  # type: ignore[union-attr]
