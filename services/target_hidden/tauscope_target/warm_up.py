"""First passes of a new engine: kernels are loaded and compiled, and the memory that passes take is taken once."""

from dataclasses import replace

import numpy as np

from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob, LogitsSpec
from tauscope_target.logits import rows_at_once
from tauscope_target.selftests import SelfTestPlan, jobs_for

LONG_PASSES_PROVED = 2
"""A prompt from host memory is tried at start-up if the shortest one is at most this many passes: a few seconds."""


def warm_up(engine: TorchEngine, tests: SelfTestPlan) -> None:
    """Run a first small pass, whose kernels are observed; a failure is raised."""
    for outcome in engine.execute([replace(job, layers=(job.layers[-1],)) for job in jobs_for(engine, tests)]):
        if isinstance(outcome, BaseException):
            raise outcome


def fill_a_pass(engine: TorchEngine) -> None:
    """Run the largest pass once, with as many logits as are computed at once: memory that will not suffice is found
    now, and kernels are compiled.
    """
    facts = engine.facts
    random = np.random.default_rng(0)
    runner = engine.parts.runner
    longest, on_device = facts.longest_tokens or 0, runner.device_tokens or 0
    lengths = [facts.pass_tokens, facts.pass_tokens // 8]  # one long prompt, and a full batch of shorter ones
    if on_device < longest and on_device <= LONG_PASSES_PROVED * facts.pass_tokens:
        from_host = min(longest, on_device + 2 * (runner.long_chunk_tokens or 1))
        lengths.insert(0, from_host)  # first: afterwards the weights have all of their room again
    head = engine.parts.head
    logits = LogitsSpec(1, next_token=True) if head is not None else None
    rows = rows_at_once(head) if head is not None else 1
    for length in lengths:
        ids = random.integers(0, facts.model.vocab_size, max(1, length), dtype=np.int32)
        job = HiddenJob(ids, (facts.deepest_layer,), False, max(0, len(ids) - rows), len(ids), logits=logits)
        for outcome in engine.execute([job] * max(1, facts.pass_tokens // len(ids))):
            if isinstance(outcome, BaseException):
                raise outcome
