"""What only a CUDA device can show: fla kernels, streams and events, the memory cap. Run with `make test-gpu`."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kit.engine import job, random_ids, results
from kit.models import GPU_FIELDS, tiny_hybrid
from tauscope_target.attention import causal_attention
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import GenerateJob, GenerateResult, LogitsSpec
from tauscope_target.modes import ModeRequest
from tauscope_target.selftests import BFLOAT16_TOLERANCE, relative_difference, rows_are_their_own
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.errors import ErrorCode, TauscopeError

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # foreign packages warn as they like there

BFLOAT16_NOISE = 0.1
"""Passes of other shapes round elsewhere: in BF16 on a CPU the worst of a thousand rows of this model is 3 % off after
eight layers. A typical row must be within this; a single one may be further off, and a row that is not the right one is
off by its whole size."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hybrid(tmp_path_factory.mktemp("gpu") / "hybrid", dtype=torch.bfloat16, **GPU_FIELDS)


def start(folder: Path, **mode: object) -> TorchEngine:
    request = ModeRequest(**({"pass_tokens": 4096, "chunk_tokens": 1024} | mode))  # type: ignore[arg-type]
    return start_engine(EngineSettings(folder, "cuda", mode=request))


@pytest.fixture(scope="module")
def resident(folder: Path) -> TorchEngine:
    return start(folder, weights="resident")


@pytest.fixture(scope="module")
def streamed(folder: Path) -> TorchEngine:
    return start(folder, weights="streamed")


def test_a_hybrid_runs_on_fla_kernels_and_says_so_with_pinned_configurations(resident: TorchEngine) -> None:
    numerics = resident.facts.numerics
    assert numerics.linear_attention == "fla"
    assert not numerics.reference_kernels
    assert numerics.compute_dtype == "bfloat16"
    # the kernels of every stage, also one whose short name several modules have
    assert {"chunk_fwd_kernel_o", "recompute_w_u_fwd_kernel", "l2norm_fwd_kernel"} <= set(numerics.kernel_configs)
    assert {test.status for test in resident.facts.self_tests} == {"passed"}


def test_a_second_start_has_the_same_fingerprint_and_the_same_bits(folder: Path, resident: TorchEngine) -> None:
    again = start(folder, weights="resident")
    assert again.facts.numerics == resident.facts.numerics
    ids = random_ids(300)
    (first,), (second,) = (results(e, [job(ids, (0, 7), dtype="bfloat16")]) for e in (resident, again))
    np.testing.assert_array_equal(first.states.view(np.uint16), second.states.view(np.uint16))


@pytest.mark.parametrize("tokens", [64, 1000, 2000])  # twice that is within a pass
def test_streamed_equals_resident_bit_for_bit(streamed: TorchEngine, resident: TorchEngine, tokens: int) -> None:
    jobs = [job(random_ids(tokens, seed=s), (-1, 2, 5, 7), final_norm=True, dtype="bfloat16") for s in (1, 2)]
    for _ in range(5):  # a race between copy and compute would not show every time
        for ours, theirs in zip(results(streamed, jobs), results(resident, jobs), strict=True):
            np.testing.assert_array_equal(ours.states.view(np.uint16), theirs.states.view(np.uint16))


def test_a_prompt_longer_than_a_pass_takes_its_stream_through_host_memory_bit_for_bit(
    streamed: TorchEngine, resident: TorchEngine
) -> None:
    wanted = [job(random_ids(9001), (-1, 2, 5, 7), final_norm=True, dtype="bfloat16")]
    found = []
    for engine, device_tokens in ((resident, 4096), (resident, None), (streamed, 4096)):
        runner = engine.parts.runner
        assert runner.takes_long_prompts
        before = runner.device_tokens, runner.chunk_tokens, runner.long_chunk_tokens
        try:
            runner.device_tokens, runner.chunk_tokens, runner.long_chunk_tokens = device_tokens, 1024, 1024
            found += [results(engine, wanted)[0].states.view(np.uint16) for _ in range(3)]
        finally:
            runner.device_tokens, runner.chunk_tokens, runner.long_chunk_tokens = before
    for states in found[1:]:
        np.testing.assert_array_equal(states, found[0])


def test_a_streamed_head_gives_the_same_best_ids(streamed: TorchEngine, resident: TorchEngine) -> None:
    wanted = [job(random_ids(700), (), logits=LogitsSpec(4, next_token=True), dtype="bfloat16")]
    (ours,), (theirs,) = results(streamed, wanted), results(resident, wanted)
    assert ours.logits is not None
    assert theirs.logits is not None
    assert np.mean(ours.logits.argmax_ids == theirs.logits.argmax_ids) > 0.95  # near-ties in BF16
    np.testing.assert_allclose(ours.logits.top_logprobs, theirs.logits.top_logprobs, atol=0.1)


def test_rows_of_a_shared_pass_and_of_chunks_are_their_own(resident: TorchEngine) -> None:
    jobs = [job(random_ids(n, seed=n), (2, 7), dtype="bfloat16") for n in (700, 65, 300)]
    runner = resident.parts.runner
    shared = results(resident, jobs)
    before = runner.chunk_tokens
    try:
        runner.chunk_tokens = 130
        chunked = [results(resident, [one])[0] for one in jobs]
    finally:
        runner.chunk_tokens = before
    for one, together, pieces in zip(jobs, shared, chunked, strict=True):
        (alone,) = results(resident, [one])
        for other in (together, pieces):
            assert relative_difference(other.states, alone.states) < BFLOAT16_TOLERANCE
            apart = np.linalg.norm(other.states.astype(np.float32) - alone.states.astype(np.float32), axis=-1)
            assert np.median(apart / np.linalg.norm(alone.states.astype(np.float32), axis=-1)) < BFLOAT16_NOISE
            assert all(rows_are_their_own(a, b) for a, b in zip(other.states, alone.states, strict=True))


@pytest.mark.parametrize("groups", [1, 6])
def test_attention_of_a_later_chunk_is_the_lower_right_triangle(groups: int) -> None:
    class Layer(torch.nn.Module):
        num_key_value_groups = groups
        is_causal = True

    random = torch.Generator("cuda").manual_seed(0)
    shape = (2, 4 * groups, 100, 256)
    query = torch.randn(shape, generator=random, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn(2, 4, 228, 256, generator=random, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found, _ = causal_attention(Layer(), query, key, value, None, scaling=256**-0.5)
    mask = torch.ones(100, 228, dtype=torch.bool, device="cuda").tril(128)
    wide = [t.float().repeat_interleave(groups, dim=1) if t is not query else t.float() for t in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask)
    torch.testing.assert_close(found.transpose(1, 2).float(), expected, atol=2e-2, rtol=2e-2)


def test_the_cap_refuses_a_pass_and_the_service_lives(streamed: TorchEngine) -> None:
    engine, runner = streamed, streamed.parts.runner
    before = runner.chunk_tokens, runner.device_tokens
    total = torch.cuda.mem_get_info()[1]
    ids = random_ids(30_000)
    small = job(random_ids(100), (7,), dtype="bfloat16")
    (expected,) = results(engine, [small])
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)
    try:
        runner.chunk_tokens = 30_000
        runner.device_tokens = None  # nothing of it goes to host memory
        (refused,) = engine.execute([job(ids, (7,), dtype="bfloat16")])
        assert isinstance(refused, TauscopeError)
        assert refused.code is ErrorCode.OUT_OF_MEMORY
        runner.chunk_tokens, runner.device_tokens = before
        (after,) = results(engine, [small])
    finally:
        runner.chunk_tokens, runner.device_tokens = before
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_array_equal(after.states.view(np.uint16), expected.states.view(np.uint16))


def test_a_generation_agrees_with_the_prefill_of_its_own_text(resident: TorchEngine) -> None:
    ids = random_ids(90)
    job_ = GenerateJob(ids, 16, 0.0, 1.0, 0, 0, frozenset(), 0)
    (found,) = resident.execute([job_])
    assert isinstance(found, GenerateResult)
    text = np.concatenate([ids, np.array(found.token_ids, np.int32)])
    (prefill,) = results(resident, [job(text, (), logits=LogitsSpec(2, next_token=True), dtype="bfloat16", start=89)])
    assert prefill.logits is not None
    # the token that was chosen is among the best two of the prefill: the kernels of one token and of many differ
    assert all(token in best for token, best in zip(found.token_ids, prefill.logits.top_ids, strict=False))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_hybrid_over_two_gpus_gives_the_bits_of_one(folder: Path, resident: TorchEngine) -> None:
    mode = ModeRequest(pass_tokens=4096, chunk_tokens=1024)
    engine = start_engine(EngineSettings(folder, "cuda", devices=(0, 1), mode=mode))
    assert [device.index for device in engine.devices] == [0, 1]
    assert engine.facts.numerics.linear_attention == "fla"
    assert {test.status for test in engine.facts.self_tests} == {"passed"}
    spec = LogitsSpec(4, next_token=True)
    wanted = [job(random_ids(n, seed=n), (-1, 2, 5, 7), logits=spec, dtype="bfloat16") for n in (1500, 64, 700)]
    for ours, theirs in zip(results(engine, wanted), results(resident, wanted), strict=True):
        np.testing.assert_array_equal(ours.states.view(np.uint16), theirs.states.view(np.uint16))
        assert ours.logits is not None and theirs.logits is not None
        np.testing.assert_array_equal(ours.logits.top_ids, theirs.logits.top_ids)


@pytest.mark.slow
def test_fused_paths_keep_the_fla_kernels_and_deviate_by_rounding(folder: Path) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    before = qwen.causal_conv1d_fn
    try:
        settings = EngineSettings(
            folder, "cuda", options=("fused",), mode=ModeRequest(weights="resident", pass_tokens=2048)
        )
        facts = start_engine(settings).facts
    finally:
        qwen.causal_conv1d_fn = before
    assert facts.numerics.linear_attention == "fla"
    assert facts.numerics.convolution == "fused"
    assert facts.noise_floor is not None
    assert max(facts.noise_floor["options"]) < BFLOAT16_NOISE
