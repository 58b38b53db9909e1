"""Expected acceptance: the formula against rejection sampling, and against a loop over rows and tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from drafter import reference, reference_heads
from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.contract import Sampling
from tauscope_drafter.engine import Engine
from tauscope_drafter.expected import Judge
from tauscope_drafter.head import Head
from tauscope_drafter.loading import open_place
from tauscope_drafter.sampling import distribution
from tauscope_drafter.states import StatesSource
from tauscope_wire.connection import Connection
from tauscope_wire.messages import AcceptanceRequest, HiddenByHandle
from tauscope_wire.reader import read_acceptance
from tauscope_wire.tensors import AcceptanceAnswer

STATES, IDS = drafters.random_sequence(24)
FINAL = torch.randn(24, drafters.HIDDEN, generator=torch.Generator().manual_seed(8))
TOKENS = IDS.tolist()
HEAD = drafters.shared_tables()["lm_head.weight"]


def slow(logits: torch.Tensor, sampling: Sampling) -> list[float]:
    """One row processed as its definition says, token by token."""
    row = [float(x) / sampling.temperature for x in logits.double()]
    if sampling.top_k:
        weakest = sorted(row, reverse=True)[sampling.top_k - 1]
        row = [x if x >= weakest else -np.inf for x in row]
    mass = [np.exp(x - max(row)) for x in row]
    probabilities = [m / sum(mass) for m in mass]
    if sampling.top_p < 1:
        kept, before = set(), 0.0
        for token in sorted(range(len(row)), key=lambda t: (-probabilities[t], t)):
            if before < sampling.top_p:
                kept.add(token)
            before += probabilities[token]
        probabilities = [p if t in kept else 0.0 for t, p in enumerate(probabilities)]
        probabilities = [p / sum(probabilities) for p in probabilities]
    return probabilities


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6), Sampling(1.3, 7), Sampling(0.8, 0, 0.7)])
def test_distributions_are_processed_as_defined(sampling: Sampling) -> None:
    logits = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    found = distribution(logits, sampling)
    for row in range(5):
        np.testing.assert_allclose(found[row], slow(logits[row], sampling), rtol=1e-4, atol=1e-6)


def test_temperature_zero_is_the_first_largest_logit() -> None:
    assert distribution(torch.tensor([[1.0, 4.0, 4.0]]), Sampling(0.0)).tolist() == [[0, 1, 0]]


def test_the_formula_is_the_rate_of_rejection_sampling() -> None:
    generator = np.random.default_rng(0)
    p, q = (generator.dirichlet(np.full(6, 0.7)) for _ in range(2))
    draws = 200_000
    drafted = generator.choice(6, draws, p=q)
    accepted = generator.random(draws) * q[drafted] < p[drafted]
    # three standard deviations of 200,000 draws are 0.0034
    assert abs(accepted.mean() - np.minimum(p, q).sum()) < 0.0034


def test_a_cut_vocabulary_has_no_mass_outside_and_is_not_renormalised_for_the_target() -> None:
    ids = drafters.draft_ids(40)
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    judge = Judge(FINAL, Head(HEAD, torch.device("cpu"), torch.float32), [2, 9, 23], Sampling(1.0))
    judge.judge(logits, ids)
    judge.judge(logits, ids)
    sampled, greedy = judge.rates()
    for row, p_at in enumerate((2, 9, 23)):
        p = torch.softmax(HEAD.double() @ FINAL[p_at].double(), 0)[ids]
        q = torch.softmax(logits[row].double(), 0)
        torch.testing.assert_close(sampled[row, 0].double(), torch.minimum(p, q).sum(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(greedy[row, 0].double(), p[int(q.argmax())], rtol=1e-4, atol=1e-6)
    assert torch.isnan(sampled[2, 1])
    assert not torch.isnan(sampled[:2, 1]).any()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("drafters")
    engine = Engine(
        open_place(torch.device("cpu"), torch.float32, drafters.write_target(folder / "target")), max_batch_anchors=3
    )
    flash = drafters.write_folder(folder / "a", drafters.dflash_config(), drafters.dflash_tensors())
    spark = drafters.write_dspark(folder / "b", "deepspec")
    engine.load("dflash", flash, LoadOptions(), roots=None)
    engine.load("dspark", spark, LoadOptions(), roots=None)
    engine.load("oracle", Path("-"), LoadOptions(family="oracle", block_size=4, noise=0.0), roots=None)
    planes = dict(zip(drafters.TAPS, STATES, strict=True)) | {"final_norm": FINAL}
    with (
        running(drafters.StatesServer(planes, TOKENS).app()) as target_url,
        Connection(target_url) as upstream,
        running(
            create_app(DrafterService(engine=engine, states=StatesSource(upstream), limits=SMALL_LIMITS, version="1"))
        ) as url,
        Connection(url) as connection,
    ):
        yield connection


def ask(service: Connection, drafter: str, **changes: object) -> AcceptanceAnswer:
    fields = {"drafter": drafter, "hidden": HiddenByHandle(handle="h"), "token_ids": TOKENS, "response_start": 18}
    return service.post_tensors("/expected_acceptance", AcceptanceRequest(**(fields | changes)), read_acceptance)


def target_row(position: int) -> torch.Tensor:
    return HEAD.double() @ FINAL[position].double()


def test_rates_over_http_equal_a_loop_over_rows(service: Connection) -> None:
    sampling = Sampling(0.9, 30, 0.95)
    answer = ask(service, "dflash", temperature=0.9, top_k=30, top_p=0.95)
    assert answer.anchors.tolist() == [18, 19, 20, 21, 22]
    embedding = drafters.shared_tables()["embed_tokens.weight"]
    for row, p in enumerate(answer.anchors):
        block = reference.dflash_block(
            drafters.dflash_tensors(), drafters.dflash_config(), STATES, IDS, p, embedding=embedding
        )
        for k in range(3):
            if p + k >= 24:
                assert np.isnan(answer.sampled[row, k]) and np.isnan(answer.greedy[row, k])
                continue
            logits = HEAD.double() @ block[1 + k]
            target, draft = slow(target_row(p + k), sampling), slow(logits, sampling)
            # float32 against float64; a token at the edge of top-k or top-p could fall on the other side
            assert answer.sampled[row, k] == pytest.approx(np.minimum(target, draft).sum(), abs=2e-3)
            assert answer.greedy[row, k] == pytest.approx(target[int(logits.argmax())], abs=2e-3)
    assert "expectation" in answer.drafter.warnings[0]


def test_sequential_heads_are_judged_along_the_text(service: Connection) -> None:
    answer = ask(service, "dspark", anchors=[12])
    tensors, config = drafters.dspark_tensors("gated"), drafters.dspark_config("gated")
    nested = {**config, "dflash_config": {"mask_token_id": drafters.MASK}}
    embedding = drafters.shared_tables()["embed_tokens.weight"]
    block = reference.dflash_block(tensors, nested, STATES, IDS, 12, embedding=embedding)
    walk = reference_heads.Walk(TOKENS[13:], drafters.VOCAB)
    reference_heads.dspark(tensors, block, TOKENS[12], walk, "gated")
    for k, (ids, logprobs) in enumerate(walk.rows):
        target = torch.softmax(target_row(12 + k), 0)[ids]
        want = float(torch.minimum(target, logprobs.exp()).sum())
        assert answer.sampled[0, k] == pytest.approx(want, abs=1e-4)


def test_temperature_zero_agrees_with_equality_of_best_tokens(service: Connection) -> None:
    answer = ask(service, "oracle", temperature=0.0)
    for row, p in enumerate(answer.anchors):
        for k in range(3):
            if p + k < 23:
                assert answer.greedy[row, k] == float(int(target_row(p + k).argmax()) == TOKENS[p + 1 + k])
