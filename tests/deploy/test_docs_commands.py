"""Every command of README.md and docs/: it is run here, or by a test that is named, or the reason why not is written.

Run word for word in a folder of their own, against both services with the bundled models, but for `VALUES`: addresses,
paths and layers that the pages' 27B has and the bundled model has not.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer.main

import demo
import tauscope_client.cli
import tauscope_drafter.cli
import tauscope_target.cli
from kit import docs_commands
from kit.docs_commands import PAGES, PROGRAMS, PYTHON, ROOT, Command, commands, fences, rule_of

ALL = commands()
PROGRAM_APPS = {
    "tauscope": tauscope_client.cli.app,
    "tauscope-target": tauscope_target.cli.app,
    "tauscope-drafter": tauscope_drafter.cli.app,
}
NUM_PROMPTS = 3
LIMIT_S = 280

VALUES = (
    (r"(?:sglang|openai|vllm)=http://127\.0\.0\.1:(?:30000|8000)", "file=references.jsonl"),
    (r"http://(?:127\.0\.0\.1|localhost|box-1|gpu-1):30010", "$TAUSCOPE_TARGET_URL"),
    (r"http://box-2:30010", "$OTHER_TARGET_URL"),
    (r"http://(?:127\.0\.0\.1|localhost):30020", "$TAUSCOPE_DRAFTER_URL"),
    (r"/opt/tauscope/bin/", ""),
    (r"1,16,31,46,61", "1,3,4,5,6"),
    (r"--layers 1,16,31\b", "--layers 1,3,5"),
    (r"--layers 31\b", "--layers 6"),
    (r"(?<!\w)/models/(?:Qwen3\.6-27B|target|qwen)\b", "$MODELS/target"),
    (r"(?<!\w)/models/(?:dflash|drafter)(?![\w-])", "$MODELS/drafter-a"),
    (r"/runs/step20k\.pt(?:,[a-z_]+=[^, ]+)*", "$MODELS/drafter-b/checkpoint.pt"),
    (r"/shared/states", "shared-states"),
    (r"--host 0\.0\.0\.0", "--host 127.0.0.1"),
    (r"--gpu-memory \S+ ?", ""),
    (r"^ssh -N", "ssh -G"),  # parses the options and connects to nobody
    (r" &$", ""),
    (r"(engines\.environments status)$", r"\1 || [ $? -eq 1 ]"),  # 1: it says that some are not set up
)


class Place(NamedTuple):
    """Where commands run."""

    folder: Path
    environment: dict[str, str]


def here(command: str) -> str:
    """The command with the values of this machine."""
    for pattern, value in VALUES:
        command = re.sub(pattern, value, command)
    if re.match(r"tauscope-target golden", command) and "--device" not in command:
        command += " --device cpu --allow-reference-kernels"
    return command


def show(command: Command) -> str:
    return f"{command.page}: {command.text}"


def test_every_command_of_every_page_is_run_or_its_reason_is_written_down() -> None:
    assert len(ALL) > 30
    assert not [show(command) for command in ALL if rule_of(command) is None]


def test_every_block_of_python_is_run_by_a_test() -> None:
    found = {page.name for page in PAGES for language, _ in fences(page) if language in ("python", "py")}
    assert found <= set(PYTHON)


def test_the_tests_that_are_said_to_run_a_command_are_there() -> None:
    notes = {rule.note for rule in docs_commands.RULES if rule.kind == "elsewhere"} | set(PYTHON.values())
    for note in notes:
        path, _, name = note.partition("::")
        assert (ROOT / path).is_file(), note
        assert f"def {name}" in (ROOT / path).read_text() or not name, note
    assert all(rule.note for rule in docs_commands.RULES if rule.kind in ("elsewhere", "cannot"))


@pytest.mark.parametrize(
    "command", [c for c in ALL if PROGRAMS.match(c.text.removeprefix("/opt/tauscope/bin/"))], ids=show
)
def test_a_command_of_this_project_has_only_options_that_exist(command: Command) -> None:
    """Parsed by the program's own parser, and not run."""
    text = re.sub(r"\s(?:[|&>]|2>).*", "", command.text.removeprefix("/opt/tauscope/bin/"))
    name, *words = shlex.split(text)
    parser: click.Command = typer.main.get_command(PROGRAM_APPS[name])
    context = click.Context(parser, info_name=name)
    while hasattr(parser, "commands") and words and words[0] in parser.commands:
        parser = parser.commands[words[0]]
        context = click.Context(parser, info_name=words.pop(0), parent=context)
    parser.parse_args(context, list(words))


def test_options_that_the_text_names_with_their_program_exist() -> None:
    """`tauscope eval --trees` in running text, too."""
    for page in PAGES:
        for code in re.findall(r"`(tauscope(?:-target|-drafter)? [^`\n]+)`", page.read_text()):
            name, *words = code.split()
            parser: click.Command = typer.main.get_command(PROGRAM_APPS[name])
            while hasattr(parser, "commands") and words and words[0] in parser.commands:
                parser = parser.commands[words.pop(0)]
            known = {option for parameter in parser.params for option in (*parameter.opts, *parameter.secondary_opts)}
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= known | {"--help"}, f"{page.name}: {code}"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Both services with the names that the pages use, and a second target."""
    logs = tmp_path_factory.mktemp("logs")
    ports = [demo.free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    target = ["--model", str(demo.MODELS / "target"), "--device", "cpu", "--allow-reference-kernels"]
    drafter = ["--target-url", urls[0], "--target-model", str(demo.MODELS / "target"), "--device", "cpu"]
    drafter += ["--root", str(demo.MODELS)]
    for name, path in (("trained", "drafter-a"), ("early", "drafter-b/checkpoint.pt")):
        drafter += ["--drafter", f"{name}={demo.MODELS / path}"]
    for name, path in (("published", "drafter-a"), ("step20k", "drafter-b/checkpoint.pt")):
        drafter += ["--drafter", f"{name}={demo.MODELS / path}"]
    with ExitStack() as stack:
        for number, (name, arguments) in enumerate(
            (("tauscope-target", target), ("tauscope-target", target), ("tauscope-drafter", drafter))
        ):
            stack.enter_context(
                demo.service(
                    name, [*arguments, "--port", str(ports[number])], url=urls[number], log_path=logs / f"{number}.log"
                )
            )
        yield dict(zip(("TAUSCOPE_TARGET_URL", "OTHER_TARGET_URL", "TAUSCOPE_DRAFTER_URL"), urls, strict=True))


def furnish(folder: Path, addresses: dict[str, str]) -> Place:
    """What a reader of a page has lying around: a checkout, prompts, references, keys, a certificate."""
    for name in ("deploy", "tests", "docs"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("prompts.jsonl", "references.jsonl"):
        lines = (demo.DEMO / name).read_text().splitlines()[:NUM_PROMPTS]
        (folder / name).write_text("".join(line + "\n" for line in lines))
    environment = dict(os.environ) | addresses | {"MODELS": str(demo.MODELS), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["USER"] = environment.get("USER", "user")
    return Place(folder, environment)


def run(command: str, place: Place) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", command],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def serve(command: str, place: Place) -> None:
    """Start a service as the page says, on a free port and the CPU; it must become ready, and end when told to."""
    words = re.sub(r" --port \S+| --uds \S+", "", command)
    words += f" --port {demo.free_port()}" + ("" if "--device" in words else " --device cpu")
    if command.startswith("tauscope-target") and "--allow-reference-kernels" not in words:
        words += " --allow-reference-kernels"
    if "--tls-cert" in words:
        make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
        done = run(f"{make} -keyout key.pem -out cert.pem && tauscope-target keys add me --keys keys.json", place)
        assert done.returncode == 0, done.stderr
    log = place.folder / "service.log"
    with (
        log.open("w") as stream,
        subprocess.Popen(
            ["bash", "-c", f"exec {words}"], cwd=place.folder, env=place.environment, stderr=stream, stdout=stream
        ) as process,
    ):
        try:
            with log.open() as reading:
                said = ""
                while "is ready at" not in said and process.poll() is None:
                    said += reading.read()
                assert "is ready at" in said + reading.read(), f"{words}\n{said}"
        finally:
            process.terminate()
            process.wait(60)


def kind_of(command: Command) -> str:
    rule = rule_of(command)
    return "" if rule is None else rule.kind


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({c.page for c in ALL if kind_of(c) in ("run", "serve")}))
def test_the_commands_of_a_page_run(page: str, addresses: dict[str, str], tmp_path: Path) -> None:
    place = furnish(tmp_path, addresses)
    ours = [command for command in ALL if command.page == page and kind_of(command) in ("run", "serve")]
    if any("runs/" in command.text and " eval " not in command.text for command in ours):
        evaluate(place)
    for command in ours:
        words = here(command.text)
        print(f"{page}: {words}")
        if kind_of(command) == "serve":
            serve(words, place)
            continue
        done = run(words, place)
        assert done.returncode == 0, f"{show(command)}\nrun as: {words}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def evaluate(place: Place) -> None:
    line = (
        "tauscope eval prompts.jsonl --drafter early --drafter trained --reference file=references.jsonl --out runs/x"
    )
    done = run(line, place)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_python_of_the_page_about_reports_runs(
    addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(furnish(tmp_path, addresses))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    (block,) = [text for language, text in fences(ROOT / "docs" / "read-a-report.md") if language == "python"]
    for line in block.splitlines():
        if "pandas" in line and not has_pandas():
            continue
        exec(line, names)
    assert names["run"].results["drafters"]["trained"]["overall"]["values"]["tau"] > 1


def has_pandas() -> bool:
    try:
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True
