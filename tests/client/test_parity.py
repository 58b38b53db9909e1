"""`tauscope parity` over the real service with the bundled model: the same numerics pass, planted faults are named."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from kit.models import checkpoint_tensors, rewrite, tiny_qwen3
from kit.serve import SMALL_LIMITS, running
from tauscope_client.cli import main
from tauscope_client.exit_codes import ExitCode
from tauscope_client.parity.differences import PlaneDifference
from tauscope_client.parity.thresholds import DEFAULT_FLOORS, FLOOR_MULTIPLE, thresholds_for
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.cli import main as target_main
from tauscope_target.golden import golden_prompts, write_golden
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.tokens import load_tokens

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "deploy" / "demo" / "models" / "target"
LAYERS = list(range(-1, 8))


def started(folder=MODEL, **settings):
    return start_engine(EngineSettings(folder, "cpu", allow_reference_kernels=True, **settings))


def capture(engine, path, *, layers=LAYERS, prompts=None):
    tokens = load_tokens(MODEL)
    write_golden(engine, prompts or golden_prompts(tokens, engine.facts.model.vocab_size)[:2], path, layers=layers)
    return path


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    return started()


@pytest.fixture(scope="module")
def url(engine):
    limits = SMALL_LIMITS.model_copy(update={"max_layers": 4})  # smaller than a capture: it must be asked in parts
    with running(create_app(engine, None, TargetSettings(serving=ServingSettings(limits=limits)))) as address:
        yield address


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """What the command of the documentation writes."""
    page = (ROOT / "docs" / "numerics.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("tauscope-target golden --model deploy/demo"))
    path = tmp_path_factory.mktemp("golden") / "golden.safetensors"
    names = {"deploy/demo/models/target": str(MODEL), "golden.safetensors": str(path)}
    assert target_main([names.get(part, part) for part in line.split()[1:]], environ={}) == 0
    return path


@pytest.fixture
def parity(url, tmp_path, capsys):
    """Run the program; gives the exit code, what it printed, and its JSON file."""

    def call(path, *options):
        report = tmp_path / "parity.json"
        code = main(["parity", str(path), "--target", url, "--json", str(report), *options])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out + said.err, json.loads(report.read_text()) if report.exists() else None

    return call


def edited(good, path, *, states=lambda array, layers: array, facts=None, without=()):
    """A copy of the capture with changed states (float32 [planes, rows, hidden]) or facts."""
    arrays = {}
    with safe_open(good, "np") as file:
        metadata = file.metadata()
        said = json.loads(metadata["facts"])
        for name in file.keys():  # noqa: SIM118 - not a mapping
            array = file.get_tensor(name)
            if not any(part in name for part in without):
                changed = states(array, said["layers"]) if name.endswith("states") else array
                arrays[name] = np.ascontiguousarray(changed)
    said |= facts or {}
    save_file(arrays, path, metadata={"schema": metadata["schema"], "facts": json.dumps(said)})
    return path


def kinds(report):
    return [cause["kind"] for cause in report["causes"]]


def test_a_capture_of_the_same_machine_passes(parity, good):
    code, text, report = parity(good)
    assert code == ExitCode.OK, text
    assert report["is_same"] and report["causes"] == [] and report["num_flips"] == 0
    assert [plane["plane"] for plane in report["planes"]] == LAYERS
    assert all(plane["worst"] == 0.0 for plane in report["planes"])  # float32 on one machine: the same bits
    assert report["floor"]["source"] == "service"
    assert "verdict: the same numerics" in text
    assert report["num_prompts"] == 4 and report["num_positions"] > 300


def test_noise_below_the_floor_passes_and_above_it_does_not(parity, good, engine, tmp_path):
    floor = engine.facts.noise_floor
    bound = FLOOR_MULTIPLE * max(5e-6, floor["batch"][-1], floor["chunks"][-1])

    def noisy(size):
        def states(array, layers):
            noise = np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
            noise *= (
                size * np.linalg.norm(array, axis=-1, keepdims=True) / np.linalg.norm(noise, axis=-1, keepdims=True)
            )
            return array + noise

        return edited(good, tmp_path / f"{size}.safetensors", states=states)

    assert parity(noisy(0.8 * bound))[0] == ExitCode.OK
    code, _, report = parity(noisy(1.2 * bound))
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["unknown"]  # equal fingerprints, no shift: nothing to accuse
    last = report["planes"][-1]
    assert last["worst"] == pytest.approx(1.2 * bound, rel=0.05)  # float32 rounds the planted noise
    assert last["relative_error"] == pytest.approx(1.2 * bound, rel=0.05)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_layer_convention_off_by_one_is_named(parity, engine, tmp_path, shift):
    real = capture(engine, tmp_path / "real.safetensors", layers=[2, 4, 6])
    code, text, report = parity(edited(real, tmp_path / "g", facts={"layers": [2 - shift, 4 - shift, 6 - shift]}))
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["layer_shift"]
    assert ("tuple convention" in text) == (shift == -1)


@pytest.mark.parametrize("shift", [-1, 1])
def test_rows_shifted_by_one_are_named(parity, good, tmp_path, shift):
    code, text, report = parity(edited(good, tmp_path / "g", states=lambda a, _: np.roll(a, -shift, axis=1)))
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["row_shift"]
    assert f"position i{shift:+d}" in text


def test_a_last_layer_taken_after_the_norm_is_named(parity, good, tmp_path):
    weight = checkpoint_tensors(MODEL)["model.norm.weight"].float().numpy()

    def states(array, layers):
        normed = array.copy()
        last = array[layers.index(7)]
        normed[-1] = last / np.sqrt((last**2).mean(-1, keepdims=True) + 1e-6) * (1 + weight)
        return normed

    code, text, report = parity(edited(good, tmp_path / "g", states=states))
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["final_norm"]
    assert [p["plane"] for p in report["planes"] if not p["is_same"]] == [7]
    assert "layer 7 of the capture was taken after the final norm" in text


def test_a_capture_computed_in_bfloat16_differs_by_dtype(parity, tmp_path):
    golden = capture(started(compute_dtype="bfloat16"), tmp_path / "g.safetensors")
    code, text, report = parity(golden)
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report)[0] == "dtype"
    assert "likely cause: another compute dtype: bfloat16 in the capture, float32 here" in text
    assert report["planes"][0]["is_same"]  # the embedding is exact in either


def test_other_weights_are_named_with_the_layer_where_they_begin(parity, engine, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    for file in MODEL.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = checkpoint_tensors(MODEL)
    name = "model.layers.3.mlp.down_proj.weight"
    tensors[name] = -tensors[name]
    rewrite(folder, tensors)
    golden = capture(started(folder), tmp_path / "g.safetensors")
    code, text, report = parity(golden)
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report)[0] == "weights" and "revision" in text
    assert [p["plane"] for p in report["planes"] if not p["is_same"]] == [3, 4, 5, 6, 7]
    with safe_open(golden, "np") as file:
        facts = json.loads(file.metadata()["facts"])
    facts["numerics"]["revision"] = engine.facts.numerics.revision  # as if the revision had not shown it
    _, text, report = parity(edited(golden, tmp_path / "h", facts={"numerics": facts["numerics"]}))
    assert kinds(report) == ["weights"]
    assert "layers up to 2 agree, from 3 on they do not" in text


def test_other_kernels_in_the_fingerprint_are_named(parity, good, engine, tmp_path):
    numerics = engine.facts.numerics.model_dump(mode="json") | {"linear_attention": "fla", "device_name": "H200"}
    said = edited(good, tmp_path / "same", facts={"numerics": numerics})
    code, text, report = parity(said)
    assert code == ExitCode.OK and report["notes"][0]["kind"] == "kernels"  # equal states: noted, not accused
    off = edited(said, tmp_path / "off", states=lambda a, _: a * np.float32(1.02))
    code, text, report = parity(off)
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["kernels", "settings"]
    assert "likely cause: other linear-attention kernels: fla in the capture, torch-reference here" in text


def test_states_of_other_tokens_are_named(parity, engine, tmp_path):
    prompts = golden_prompts(load_tokens(MODEL), engine.facts.model.vocab_size)[:1]
    changed = [prompts[0].copy()]
    changed[0][10:20] = changed[0][10:20][::-1] + 7
    other = capture(engine, tmp_path / "other", prompts=changed)
    with safe_open(other, "np") as file:
        theirs = file.get_tensor("prompt.0.states")
    here = capture(engine, tmp_path / "here", prompts=prompts)
    code, text, report = parity(edited(here, tmp_path / "g", states=lambda *_: theirs))
    assert code == ExitCode.OTHER_NUMERICS
    assert kinds(report) == ["tokens"]
    assert (
        f"{int((changed[0] != prompts[0]).sum())} of {len(prompts[0])} embedding rows differ, from position 10" in text
    )


def test_another_argmax_with_equal_layers_is_a_difference(parity, good, tmp_path):
    bad = edited(good, tmp_path / "g")
    with safe_open(bad, "np") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["prompt.0.argmax_ids"] = (arrays["prompt.0.argmax_ids"] + 1) % 4096
    save_file(arrays, bad, metadata=metadata)
    code, text, report = parity(bad)
    assert code == ExitCode.OTHER_NUMERICS
    assert report["num_flips"] == len(arrays["prompt.0.argmax_ids"])
    assert "another head" in text
    code, text, report = parity(edited(good, tmp_path / "none", without=["argmax"]))
    assert code == ExitCode.OK and report["num_flips"] is None and "argmax: not compared" in text


def test_a_capture_of_another_model_is_refused(parity, tmp_path):
    engine = started(tiny_qwen3(tmp_path / "tiny"))
    path = tmp_path / "g.safetensors"
    write_golden(engine, golden_prompts(None, 300)[:1], path, layers=[1])
    code, text, _ = parity(path)
    assert code == ExitCode.REFUSED
    assert "hidden_size 64" in text and "with 256" in text


def test_broken_captures_are_one_clear_line(parity, good, tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(good.read_bytes()[:5000])
    plain = tmp_path / "plain.safetensors"
    save_file({"x": np.zeros(2, np.float32)}, plain)
    nan = edited(good, tmp_path / "nan", states=lambda a, _: np.where(a > 1, np.float32("nan"), a))
    cases = {
        tmp_path / "none": "no such file",
        cut: "not a complete safetensors file",
        plain: "expected 'tauscope.golden/1'",
        nan: "not finite",
        edited(good, tmp_path / "facts", facts={"layers": "1"}): "facts.layers",
        edited(good, tmp_path / "fewer", facts={"layers": [1]}): "expected float32",
        edited(good, tmp_path / "lost", without=["0.states"]): "no tensor prompt.0.states",
    }
    for path, words in cases.items():
        code, text, _ = parity(path)
        assert (code, words in text) == (ExitCode.USAGE, True), text
        assert len(text.strip().splitlines()) == 1


def test_differences_equal_a_loop_over_rows():
    rng = np.random.default_rng(0)
    golden, found = rng.standard_normal((2, 5, 16)).astype(np.float32)
    plane = PlaneDifference(3)
    plane.add(found[:2], golden[:2], 0)
    plane.add(found[2:], golden[2:], 1)
    ratios = [np.linalg.norm(f - g) / np.linalg.norm(g) for f, g in zip(found, golden, strict=True)]
    cosines = [f @ g / np.linalg.norm(f) / np.linalg.norm(g) for f, g in zip(found, golden, strict=True)]
    at = int(np.argmax(ratios))
    assert plane.worst == pytest.approx(max(ratios), rel=1e-5)  # float32 sums in two orders
    assert (plane.worst_prompt, plane.worst_position) == ((0, at) if at < 2 else (1, at - 2))
    assert plane.smallest_cosine == pytest.approx(min(cosines), rel=1e-4, abs=1e-6)
    assert plane.relative_error == pytest.approx(np.linalg.norm(found - golden) / np.linalg.norm(golden), rel=1e-5)


def test_thresholds_come_from_the_service_then_the_capture_then_a_default():
    own = {"planes": [-1, 4, 8], "batch": [0.0, 1e-3, 2e-3], "chunks": [0.0, 2e-3, 1e-3], "options": [1.0, 1.0, 1.0]}
    theirs = {"planes": [4], "batch": [5e-2]}
    bounds = thresholds_for([4, 6, 63], service=own, golden=theirs, computed_in="float32", num_rounded=0, multiple=3)
    assert bounds.source == "service"
    assert bounds.by_plane == pytest.approx({4: 6e-3, 6: 6e-3, 63: 6e-3})
    bounds = thresholds_for([1], service=None, golden=theirs, computed_in="bfloat16", num_rounded=2)
    assert (bounds.source, bounds.by_plane[1]) == ("golden", pytest.approx(FLOOR_MULTIPLE * 5e-2 + 2 * 2.0**-9))
    broken = ([1e-3, 2e-3], ["x"], [None], [float("inf")], 1e-3)
    for unusable in (None, {}, {"planes": [1]}, {"planes": "1"}, *({"planes": [1], "batch": row} for row in broken)):
        bounds = thresholds_for([1], service=unusable, golden=unusable, computed_in="float32", num_rounded=0)
        assert (bounds.source, bounds.by_plane[1]) == ("default", FLOOR_MULTIPLE * DEFAULT_FLOORS["float32"])
        assert "neither side measured one" in bounds.sentence()
