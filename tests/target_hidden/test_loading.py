"""Checkpoints: what loads, what is never read, and what a damaged one says."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from kit.engine import Checkpoint, job, random_ids, results
from kit.models import MIXTURE_FIELDS, checkpoint_tensors, rewrite, tiny_hybrid, tiny_llama
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.modes import ModeRequest
from tauscope_target.selftests import relative_difference
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.weights import SafetensorsSource
from tauscope_wire.errors import CheckpointError, ErrorCode

PLAN = LoadingPlan(dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def llama(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "llama"))


@pytest.fixture
def vision(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("vision"), tmp_path / "vision"))


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(open_checkpoint(folder), PLAN)
    return caught.value


def test_the_text_tower_of_a_sharded_vision_language_checkpoint_loads_with_equal_weights(vision: Path) -> None:
    folder = open_checkpoint(vision)
    assert len({entry.file for entry in folder.entries.values()}) >= 4
    anatomy = load(folder, PLAN)
    assert type(anatomy.model).__name__ == "Qwen3_5ForCausalLM"
    stored = checkpoint_tensors(vision)
    own = dict(anatomy.model.named_parameters())
    assert len(own) == sum(name.startswith(("model.language_model.", "lm_head.")) for name in stored)
    for name, parameter in own.items():
        source = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        torch.testing.assert_close(parameter, stored[source].float(), rtol=0, atol=0)


def test_loading_never_reads_the_vision_tower_or_the_mtp_head(vision: Path) -> None:
    """Their bytes may be garbage: what they hold is not read, so it cannot matter."""
    folder = open_checkpoint(vision)
    for name, entry in folder.entries.items():
        if name.startswith(("model.visual.", "mtp.")):
            with entry.file.open("r+b") as file:
                file.seek(entry.start)
                file.write(b"\xff" * entry.nbytes)
    anatomy = load(open_checkpoint(vision), PLAN)
    assert all(torch.isfinite(parameter).all() for parameter in anatomy.model.parameters())


def test_layers_above_the_deepest_and_the_head_are_not_read_and_not_needed(vision: Path) -> None:
    folder = open_checkpoint(vision)
    kept = {
        name: tensor
        for name, tensor in checkpoint_tensors(vision).items()
        if not name.startswith(tuple(f"model.language_model.layers.{i}." for i in (5, 6, 7)))
        and not name.startswith("lm_head.")
    }
    rewrite(vision, kept)
    assert len(kept) < len(folder.entries)
    settings = EngineSettings(vision, "cpu", allow_reference_kernels=True, deepest_layer=4)
    engine = start_engine(settings)
    assert engine.facts.deepest_layer == 4
    assert engine.facts.model.num_layers == 8
    assert not engine.facts.has_head
    assert any("head" in thing for thing in engine.facts.mode_cannot)
    states = {test.name: test.status for test in engine.facts.self_tests}
    assert states["argmax_from_last_plane"] == "not_run"
    (found,) = results(engine, [job(random_ids(9), (4,))])
    assert found.states.shape == (1, 9, 64)


def test_a_checkpoint_of_the_base_model_alone_lacks_only_its_untied_head(llama: Path) -> None:
    bare = {n.removeprefix("model."): t for n, t in checkpoint_tensors(llama).items() if n != "lm_head.weight"}
    rewrite(llama, bare)
    error = refusal(llama)
    assert error.code is ErrorCode.TENSOR_MISSING
    assert error.details["missing"] == ["lm_head.weight"]


def test_a_missing_tensor_is_named(llama: Path) -> None:
    tensors = checkpoint_tensors(llama)
    del tensors["model.layers.3.mlp.up_proj.weight"]
    rewrite(llama, tensors)
    error = refusal(llama)
    assert error.code is ErrorCode.TENSOR_MISSING
    assert "model.layers.3.mlp.up_proj.weight" in error.message


def test_an_unexpected_tensor_is_named(llama: Path) -> None:
    rewrite(llama, checkpoint_tensors(llama) | {"model.layers.0.mlp.extra.weight": torch.zeros(2)})
    error = refusal(llama)
    assert error.code is ErrorCode.TENSOR_UNEXPECTED
    assert "model.layers.0.mlp.extra.weight" in error.message


def test_a_wrong_shape_names_tensor_found_and_expected(llama: Path) -> None:
    tensors = checkpoint_tensors(llama)
    tensors["model.norm.weight"] = torch.ones(63)
    rewrite(llama, tensors)
    error = refusal(llama)
    assert error.code is ErrorCode.TENSOR_SHAPE
    assert "model.norm.weight has shape [63]; the configuration asks for [64]" in error.message


@pytest.mark.parametrize("keep", [0, 4, 100, 5_000, -1])
def test_a_truncated_file_is_refused_before_anything_is_loaded(llama: Path, keep: int) -> None:
    file = llama / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    error = refusal(llama)
    assert error.code is ErrorCode.CHECKPOINT_CORRUPT
    assert "model.safetensors" in error.message


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        b'{"a": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4000000]}}',
        b'{"a": 5}',
    ],
)
def test_a_hostile_header_is_a_checkpoint_error(llama: Path, header: bytes) -> None:
    (llama / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    assert refusal(llama).code is ErrorCode.CHECKPOINT_CORRUPT


def test_an_index_cannot_name_a_file_outside_the_folder(vision: Path) -> None:
    index = vision / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = "../secret.safetensors"
    index.write_text(json.dumps(content))
    assert refusal(vision).code is ErrorCode.CHECKPOINT_UNSAFE


def test_a_missing_shard_is_named(vision: Path) -> None:
    (vision / "model-00002-of-00003.safetensors").unlink()
    error = refusal(vision)
    assert error.code is ErrorCode.CHECKPOINT_MISSING
    assert "model-00002-of-00003.safetensors" in error.message


def test_a_shard_that_lacks_what_the_index_promises_is_named(vision: Path) -> None:
    index = vision / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.language_model.extra"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    assert refusal(vision).code is ErrorCode.TENSOR_MISSING


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_folder_says_what_is_missing(llama: Path, missing: str) -> None:
    (llama / missing).unlink()
    error = refusal(llama)
    assert error.code is ErrorCode.CHECKPOINT_MISSING
    assert missing.partition(".")[0] in error.message or "safetensors" in error.message


def test_an_unknown_model_type_is_unsupported(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | {"model_type": "no_such_model"}))
    assert refusal(llama).code is ErrorCode.CHECKPOINT_UNSUPPORTED


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"quant_method": "madeup"}, "cannot load quant_method 'madeup'"),
        ({"bits": 4}, "names no quant_method"),
        ("yes", "not a map"),
    ],
)
def test_a_quantisation_that_transformers_does_not_know_is_refused(llama: Path, described: object, words: str) -> None:
    """transformers itself would skip it with a warning and load what lies there."""
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    with pytest.raises(CheckpointError, match=words) as caught:
        start_engine(EngineSettings(llama, "cpu"))
    assert caught.value.code is ErrorCode.CHECKPOINT_UNSUPPORTED


def test_a_quantised_checkpoint_that_transformers_loads_is_served_and_named_in_the_fingerprint(tmp_path: Path) -> None:
    """FP8 in blocks, as published checkpoints have it; without a GPU transformers dequantises it."""
    pytest.importorskip("accelerate")
    plain = tiny_llama(tmp_path / "plain")
    folder = Path(shutil.copytree(plain, tmp_path / "fp8"))
    tensors = checkpoint_tensors(plain)
    by_hand = dict(tensors)
    for name in [n for n in tensors if "_proj.weight" in n]:
        weight = tensors[name].float()
        blocks = weight.unfold(0, 32, 32).unfold(1, 32, 32)  # [rows, columns, 32, 32]
        scales = blocks.abs().amax((2, 3)) / 448
        spread = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)
        tensors[name] = (weight / spread).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
        by_hand[name] = tensors[name].float() * spread
    rewrite(folder, tensors)
    rewrite(plain, by_hand)
    config = json.loads((folder / "config.json").read_text())
    described = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    engine = start_engine(EngineSettings(folder, "cpu"))
    assert engine.facts.numerics.quantization == "fp8"
    ids = random_ids(30)
    (ours,), (theirs,) = (results(e, [job(ids, (2,))]) for e in (engine, start_engine(EngineSettings(plain, "cpu"))))
    assert relative_difference(ours.states, theirs.states) < 1e-5  # float32 on either side; FP8 itself costs 0.3
    with pytest.raises(CheckpointError, match="only the resident and cpu modes"):
        start_engine(EngineSettings(folder, "cpu", mode=ModeRequest(weights="streamed")))


def test_pickled_weights_load_without_running_code(llama: Path) -> None:
    tensors = checkpoint_tensors(llama)
    (llama / "model.safetensors").unlink()
    torch.save(tensors, llama / "pytorch_model.bin")
    anatomy = load(open_checkpoint(llama), PLAN)
    torch.testing.assert_close(anatomy.model.lm_head.weight, tensors["lm_head.weight"].float(), rtol=0, atol=0)


class _RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this must never be printed",))


def test_a_pickle_that_would_run_code_is_refused(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (llama / "model.safetensors").unlink()
    torch.save({"a": _RunsCode()}, llama / "pytorch_model.bin")
    assert refusal(llama).code in (ErrorCode.CHECKPOINT_UNSAFE, ErrorCode.CHECKPOINT_CORRUPT)
    assert "never be printed" not in capsys.readouterr().out


def test_the_revision_changes_with_any_tensor_and_not_with_the_folder(checkpoint: Checkpoint, llama: Path) -> None:
    same = open_checkpoint(llama).revision()
    assert same == open_checkpoint(checkpoint("llama")).revision()
    tensors = checkpoint_tensors(llama)
    tensors["model.layers.4.self_attn.o_proj.weight"] += 1e-3
    rewrite(llama, tensors)
    assert open_checkpoint(llama).revision() != same


def test_every_tensor_is_read_once(llama: Path) -> None:
    source = SafetensorsSource(open_checkpoint(llama))
    for name, shape in source.shapes().items():
        source.read_into(name, torch.empty(shape))
    assert source.num_reads == {"model.safetensors": len(source.shapes())}


def test_bfloat16_weights_are_upcast_once_for_a_cpu(tmp_path: Path) -> None:
    folder = tiny_hybrid(tmp_path / "bf16", dtype=torch.bfloat16)
    engine = start_engine(EngineSettings(folder, "cpu", allow_reference_kernels=True))
    assert engine.facts.numerics.compute_dtype == "float32"
    stored = checkpoint_tensors(folder)
    weight = engine.parts.anatomy.model.lm_head.weight
    torch.testing.assert_close(weight, stored["lm_head.weight"].float(), rtol=0, atol=0)


def test_tied_embeddings_share_one_tensor(checkpoint: Checkpoint) -> None:
    anatomy = load(open_checkpoint(checkpoint("qwen3")), PLAN)
    assert anatomy.head is not None
    assert anatomy.head.weight.data_ptr() == anatomy.embedding.weight.data_ptr()


def test_stop_ids_come_from_the_generation_configuration_first(checkpoint: Checkpoint, llama: Path) -> None:
    assert open_checkpoint(llama).stop_token_ids == (3, 0)
    (llama / "generation_config.json").unlink()
    assert open_checkpoint(llama).stop_token_ids == (3,)


def test_a_model_whose_experts_are_fused_while_loading_is_loaded_by_transformers(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(**MIXTURE_FIELDS)
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "moe")
    engine = start_engine(EngineSettings(tmp_path / "moe", "cpu"))
    ids = random_ids(11)
    (found,) = results(engine, [job(ids, (0, 1))])
    with torch.no_grad():
        states = model(torch.from_numpy(ids)[None].long(), output_hidden_states=True).hidden_states
    torch.testing.assert_close(torch.from_numpy(found.states[0]), states[1][0], rtol=1e-5, atol=1e-6)


def test_another_seed_is_another_revision(tmp_path: Path) -> None:
    one, two = tiny_llama(tmp_path / "one", seed=1), tiny_llama(tmp_path / "two", seed=2)
    assert open_checkpoint(one).revision() != open_checkpoint(two).revision()
