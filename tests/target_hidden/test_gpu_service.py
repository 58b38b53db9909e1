"""The programs on a CUDA device, with the bundled hybrid: memory cap, kernels, parity of machines. `make test-gpu`.

Everything that computes on a CPU runs in a process of its own: one that has chosen the CPU keeps fla out for good.
"""

import gc
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

from kit.program import Program, run_program, serving
from tauscope_target.selftests import rows_are_their_own
from tauscope_wire.connection import Connection
from tauscope_wire.messages import GenerateAnswer, GenerateRequest, HiddenRequest, LogitsRequest, TargetInfo
from tauscope_wire.reader import read_hidden
from tauscope_wire.tensors import HiddenAnswer

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # foreign packages warn as they like there

MODEL = Path(__file__).parents[2] / "deploy" / "demo" / "models" / "target"
CAP = "2.5GiB"
CAP_BYTES = 5 << 29
TELLS_WITHIN = 128 << 20
"""The driver's count of a process leaves out a little of what it takes on the card."""
LAYERS = [-1, 1, 3, 4, 6, 7]
KINDS = ("resident", "streamed")
OTHER_KERNELS = 0.1
"""Largest relative difference of a plane between float32 on reference kernels and BF16 on fla: a few percent after
eight layers, where a wrong row would be off by its whole size."""


class Machine(NamedTuple):
    """Both modes on one card.

    Attributes:
        programs: by mode.
        free_before: bytes of the card that were free before they started, as the driver counts.
    """

    programs: dict[str, Program]
    free_before: int

    def taken(self) -> int:
        """Bytes of the card that both have now."""
        return self.free_before - free_bytes()


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    torch.empty(1, device="cuda")  # what this process takes itself must not count as theirs
    gc.collect()
    torch.cuda.empty_cache()
    free = free_bytes()
    arguments = [["--model", str(MODEL), "--weights", kind, "--gpu-memory", CAP] for kind in KINDS]
    with serving(*arguments) as programs:
        yield Machine(dict(zip(KINDS, programs, strict=True)), free)


def ids_of(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(4, 4096, length).tolist()


def ask(url: str, length: int, seed: int, **fields: Any) -> HiddenAnswer:
    request = HiddenRequest(**({"token_ids": ids_of(length, seed), "layers": LAYERS} | fields))
    with Connection(url) as connection:
        return connection.post_tensors("/hidden_states", request, read_hidden)


def info_of(url: str) -> TargetInfo:
    with Connection(url) as connection:
        return connection.get_json("/info", TargetInfo)


def gauge(url: str, name: str) -> float:
    found = re.search(rf"^tauscope_target_{name} (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_service_runs_fla_kernels_passes_its_self_tests_and_says_what_it_cannot(
    machine: Machine, kind: str
) -> None:
    info = info_of(machine.programs[kind].url)
    numerics = info.numerics
    assert (info.mode, numerics.weights_mode, numerics.device) == (kind, kind, "cuda")
    assert numerics.linear_attention == "fla" and numerics.fla is not None
    assert not numerics.reference_kernels
    assert numerics.convolution not in (None, "unobserved")
    assert "chunk_fwd_kernel_o" in numerics.kernel_configs
    assert "failed" not in {test.status for test in info.self_tests}
    for test in info.self_tests:
        assert test.status == "passed" or test.detail, test
    floor = info.noise_floor
    assert floor is not None
    assert len(floor["batch"]) == len(floor["chunks"]) == len(floor["planes"])
    assert httpx.get(f"{machine.programs[kind].url}/readyz").status_code == 200


def test_streamed_and_resident_services_answer_the_same_bits(machine: Machine) -> None:
    for length in (5, 700, 2048):
        resident, streamed = (ask(machine.programs[kind].url, length, length, final_norm=True) for kind in KINDS)
        assert resident.states is not None and streamed.states is not None
        np.testing.assert_array_equal(resident.states.view(np.uint16), streamed.states.view(np.uint16))


def test_rows_of_concurrent_requests_are_their_own(machine: Machine) -> None:
    lengths = [3, 1500, 64, 333, 2000, 17, 900, 65, 128, 700, 1, 2048]
    url = machine.programs["streamed"].url

    def one(length: int) -> HiddenAnswer:
        return ask(url, length, length, layers=[3, 7])

    with ThreadPoolExecutor(len(lengths)) as pool:
        together = list(pool.map(one, lengths))
    for length, shared in zip(lengths, together, strict=True):
        alone = one(length)
        assert shared.token_ids.tolist() == ids_of(length, length)
        assert shared.states is not None and alone.states is not None
        assert all(rows_are_their_own(a, b) for a, b in zip(shared.states, alone.states, strict=True))


def test_the_memory_that_the_driver_counts_stays_within_the_cap_under_load(machine: Machine) -> None:
    """Seen from outside: free memory of the card before the services started, and now; they share nothing."""
    urls = [program.url for program in machine.programs.values()]

    def load(number: int) -> None:
        logits = LogitsRequest(top_k=16) if number % 3 == 0 else None
        ask(urls[number % 2], 2048, number, layers=LAYERS, final_norm=True, logits=logits)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(load, range(48)))
    caps = [gauge(url, "gpu_memory_cap_bytes") for url in urls]
    used = [gauge(url, "gpu_memory_used_bytes") for url in urls]
    assert caps == [CAP_BYTES, CAP_BYTES]
    assert all(0 < mine <= CAP_BYTES for mine in used), used
    taken = machine.taken()
    assert taken <= 2 * CAP_BYTES
    assert taken - sum(used) <= 2 * TELLS_WITHIN, (taken, used)


def test_a_cap_below_the_context_alone_is_refused_in_one_line() -> None:
    done = run_program("tauscope_target.cli", "--model", str(MODEL), "--gpu-memory", "600MiB", "--port", "0")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert done.returncode == 1, done.stderr
    assert len(errors) == 1
    assert "--gpu-memory" in errors[0]
    assert "Traceback" not in done.stderr


def golden(path: Path, *options: str) -> Path:
    done = run_program("tauscope_target.cli", "golden", "--model", str(MODEL), "--out", str(path), *options)
    assert done.returncode == 0, done.stderr
    return path


def parity(capture: Path, url: str, report: Path) -> tuple[int, str, dict[str, Any]]:
    done = run_program("tauscope_client.cli", "parity", str(capture), "--target", url, "--json", str(report))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, json.loads(report.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_of_another_process_on_this_card_is_the_same_numerics(
    machine: Machine, tmp_path: Path, kind: str
) -> None:
    capture = golden(tmp_path / "gpu.safetensors", "--device", "cuda", "--gpu-memory", CAP, "--weights", "resident")
    code, said, report = parity(capture, machine.programs[kind].url, tmp_path / "report.json")
    assert code == 0, said
    assert report["is_same"]
    assert max(plane["worst"] for plane in report["planes"]) == 0.0  # pinned kernels, same shapes: the same bits
    assert report["num_flips"] is not None


def test_a_float32_capture_of_the_cpu_is_other_numerics_close_by_and_kernels_or_dtype_are_blamed(
    machine: Machine, tmp_path: Path
) -> None:
    capture = golden(tmp_path / "cpu.safetensors", "--device", "cpu", "--allow-reference-kernels")
    code, said, report = parity(capture, machine.programs["resident"].url, tmp_path / "report.json")
    planes = {plane["plane"]: plane for plane in report["planes"]}
    assert planes[-1]["is_same"]  # the embedding is BF16 on either side
    assert all(plane["relative_error"] < OTHER_KERNELS for plane in report["planes"]), said
    assert report["num_flips"] <= 0.1 * report["num_positions"]
    if code == 0:  # the floor of this card may be wider than the difference; then it is noted
        assert {"kernels", "dtype"} <= {note["kind"] for note in report["notes"]}
    else:
        assert code == 8, said
        kinds = {cause["kind"] for cause in report["causes"]}
        assert {"kernels", "dtype"} <= kinds and not any(cause["is_shown"] for cause in report["causes"]), said


def test_a_resident_service_generates_what_its_own_logits_say(machine: Machine) -> None:
    url = machine.programs["resident"].url
    ids = ids_of(60, 9)
    request = GenerateRequest(token_ids=ids, max_new_tokens=24)
    with Connection(url) as connection:
        text = connection.post_json("/generate", request, GenerateAnswer).token_ids
    answer = ask(url, 0, 0, token_ids=ids + text, layers=[7], logits=LogitsRequest(top_k=2))
    assert answer.logits is not None
    rows = answer.logits.top_ids[len(ids) - 1 : len(ids) - 1 + len(text)]
    # among the best two: the kernels of one token and of many round differently
    assert all(token in best for token, best in zip(text, rows, strict=True))
