"""kill -9 of the client and of each service, at every moment of a run: the run that goes on ends as an undisturbed one.

The moments are those at which the client says that something is finished, each of them in turn.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import demo
from kit.programs import Program

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

MODELS = demo.MODELS
NUM_PROMPTS = 3
ATTEMPTS = 4
FINISHED = re.compile(r"^(\w+: \d+/\d+)")
RETRIED = 3
"""Exit code of a run whose service is gone: it is continued by the same command."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    states = tmp_path_factory.mktemp("states")
    arguments = ["--model", f"{MODELS}/target", "--allow-reference-kernels", "--spill-dir", str(states)]
    program = Program("tauscope-target", arguments)
    program.start()
    yield program
    program.stop()


@pytest.fixture(scope="module")
def drafter(target: Program) -> Iterator[Program]:
    arguments = ["--target-url", target.url, "--target-model", f"{MODELS}/target", "--drafter", f"a={MODELS}/drafter-a"]
    program = Program("tauscope-drafter", arguments)
    program.start()
    yield program
    program.stop()


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join((demo.DEMO / "prompts.jsonl").read_text().splitlines()[:NUM_PROMPTS]))
    return path


def command(prompts: Path, out: Path, target: Program, drafter: Program) -> list[str]:
    return [
        *(sys.executable, "-m", "tauscope_client.cli", "eval", str(prompts), "--drafter", "a", "--out", str(out)),
        *("--target", target.url, "--drafter-url", drafter.url, "--max-new-tokens", "24", "--concurrency", "1"),
    ]


def run_until(words: list[str], moment: str | None, act: Callable[["subprocess.Popen[str]"], None]) -> tuple[int, Any]:
    """Run the client; at a moment, do something. Gives its exit code and the moments that it had."""
    moments = []
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="")  # shown when the test fails
            if (found := FINISHED.match(line)) is not None and found[1] not in moments:
                moments.append(found[1])
                if found[1] == moment:
                    act(process)
    return process.returncode, moments


def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text()), (out / "references.jsonl").read_bytes()


@pytest.mark.parametrize("victim", ["client", "target", "drafter"])
def test_a_run_whose_client_or_service_is_killed_at_any_moment_ends_as_an_undisturbed_one(
    victim: str, target: Program, drafter: Program, prompts: Path, tmp_path: Path
) -> None:
    code, moments = run_until(command(prompts, tmp_path / "whole", target, drafter), None, lambda _: None)
    assert code == 0
    assert {moment.partition(":")[0] for moment in moments} >= {"references", "drafts"}

    def kill(process: "subprocess.Popen[str]") -> None:
        if victim == "client":
            process.kill()
        else:
            service = {"target": target, "drafter": drafter}[victim]
            service.kill()
            service.start()

    continued = 0
    for number, moment in enumerate(moments):
        out = tmp_path / str(number)
        words = command(prompts, out, target, drafter)
        code, _ = run_until(words, moment, kill)
        for _ in range(ATTEMPTS):
            if code == 0:
                break
            assert code in (-9, RETRIED, 5), code  # killed, a service that cannot be reached, some prompts not finished
            continued += 1
            code, _ = run_until(words, None, lambda _: None)
        assert code == 0
        assert results(out) == results(tmp_path / "whole"), moment
    print(
        f"kill -9 of the {victim} at {len(moments)} moments ({', '.join(moments)}): {continued} runs continued by hand"
    )


def test_an_extraction_whose_target_is_killed_ends_as_an_undisturbed_one(target: Program, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"token_ids": [5 + n % 90, 6, 7] * (1 + n % 9)}) + "\n" for n in range(60)))

    def extract(out: Path, act: Callable[["subprocess.Popen[str]"], None]) -> int:
        words = [
            sys.executable,
            "-m",
            "tauscope_client.cli",
            "extract",
            str(texts),
            "--out",
            str(out),
            "--layers",
            "1,3",
        ]
        return run_until([*words, "--target", target.url, "--concurrency", "1"], "extract: 1/60", act)[0]

    def content(out: Path) -> dict[str, bytes]:
        return {str(file.relative_to(out)): file.read_bytes() for file in (out / "data").rglob("*") if file.is_file()}

    def kill(process: "subprocess.Popen[str]") -> None:
        target.kill()
        target.start()

    assert extract(tmp_path / "whole", lambda _: None) == 0
    code = extract(tmp_path / "killed", kill)
    continued = 0
    while code != 0 and continued < ATTEMPTS:
        continued += 1
        code = extract(tmp_path / "killed", lambda _: None)
    assert code == 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert len(content(tmp_path / "whole")) == 60
    print(f"kill -9 of the target under an extraction of 60 texts: {continued} runs continued by hand")
