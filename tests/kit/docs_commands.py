"""Every command of the pages for users: README.md and docs/*.md, cut out of their fenced blocks.

`RULES` say what becomes of a command; the first pattern that matches decides. What is a program of this project and
matches none before is run, so that a new line of a page is run without anybody thinking of it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = {"sh", "bash", "shell", "console"}
PROGRAMS = re.compile(r"tauscope(?:-target|-drafter)?(?= )")
STARTS = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:tauscope|make|git|pip|python|ssh|curl|docker|kubectl|sudo|cp|cd|rm|serve|export|npm|ray)\b"
    r"|\$EDITOR"
)
"""How a line of a block without a language begins when it is a command and not a drawing or an output."""

Kind = Literal["run", "serve", "elsewhere", "cannot"]
"""run: to its end. serve: until it is ready, then stopped. elsewhere: a test runs it, or the same with other values.
cannot: why it cannot be run here, and what is tested in its place."""


@dataclass(frozen=True)
class Command:
    """A command of a page, comments and line ends taken out."""

    page: str
    text: str


@dataclass(frozen=True)
class Rule:
    """What becomes of the commands that match.

    Attributes:
        pattern: found at the beginning of the command.
        kind: what becomes of it.
        note: the test (`path::name`, or a path), or the reason.
    """

    pattern: str
    kind: Kind
    note: str = ""


RULES = (
    Rule(r"git clone ", "cannot", "the address of the repository is a blank to fill in"),
    Rule(r"make demo", "elsewhere", "tests/e2e/conftest.py"),
    Rule(r"make test\b|make setup|make soak|make bench|make check", "cannot", "it would run this test in itself"),
    Rule(r"make engine|PYTHONPATH=tests python -m engines\.record", "elsewhere", "tests/engines/test_sglang.py"),
    Rule(r"make readers", "elsewhere", "tests/client/extract/test_readers.py"),
    Rule(r"make ray|serve deploy|export PYTHONPATH=\$PWD/deploy/ray", "elsewhere", "tests/deploy/test_ray.py"),
    Rule(r"make image", "elsewhere", "tests/deploy/test_image.py"),
    Rule(r"make ", "cannot", "a verb of the Makefile; `make help` is run by tests/project"),
    Rule(
        r"python3? -m venv|\S*pip install .*(speculators|specforge)",
        "elsewhere",
        "tests/client/extract/test_readers.py",
    ),
    Rule(r"TAUSCOPE_READERS_PYTHON=", "elsewhere", "tests/client/extract/test_readers.py"),
    Rule(r"\S*pip install ", "elsewhere", "tests/deploy/test_install.py::test_a_dry_run_makes_a_working_prefix"),
    Rule(r"npm install ", "elsewhere", "tests/deploy/test_docs.py::test_the_javascript_block_reads_the_same_numbers"),
    Rule(r"ssh ", "run"),
    Rule(r"tauscope ship ", "elsewhere", "tests/client/ship/test_relay.py"),
    Rule(r"\$EDITOR ", "cannot", "opens an editor"),
    Rule(
        r"sudo |rm -r /opt", "cannot", "needs a machine with systemd; tests/deploy/test_manifests.py verifies the units"
    ),
    Rule(r"\S*deploy/box/install\.sh", "elsewhere", "tests/deploy/test_install.py"),
    Rule(
        r"docker |cp deploy/compose|cd deploy/compose",
        "cannot",
        "needs a Docker daemon; see tests/deploy/test_image.py",
    ),
    Rule(r"kubectl apply", "cannot", "needs a cluster; tests/deploy/test_manifests.py validates what it sends"),
    Rule(r"tauscope watch (?!.*--once)", "elsewhere", "tests/e2e/test_watch.py"),
    Rule(r"tauscope-target keys ", "elsewhere", "tests/deploy/test_docs.py::test_the_key_commands_of_the_page_work"),
    Rule(
        r"curl .*layer31\.msgpack",
        "elsewhere",
        "tests/deploy/test_docs.py::test_the_curl_line_gives_a_file_that_msgpack",
    ),
    Rule(r"tauscope hidden --target \"\$URL\"", "elsewhere", "tests/deploy/test_docs.py::test_the_client_line_gives"),
    Rule(r"tauscope-target (?!golden|plan|keys|inspect|version|parity)", "serve"),
    Rule(r"tauscope-drafter (?!inspect|convert|describe|version|keys)", "serve"),
    Rule(r"(/opt/tauscope/bin/)?tauscope(-target|-drafter)? ", "run"),
    Rule(r"curl |export |PYTHONPATH=tests python -m engines\.environments status", "run"),
)

PYTHON = {
    "extract-hidden-states.md": "tests/client/extract/test_readers.py",
    "read-a-report.md": "tests/deploy/test_docs_commands.py::test_the_python_of_the_page_about_reports_runs",
    "share-with-other-teams.md": "tests/deploy/test_docs.py::test_three_lines_of_python_give_layer_31",
}
"""Blocks of Python by page, and the test that runs them."""


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[Command]:
    """All commands of all pages, in their order."""
    return [
        Command(page.name, line) for page in PAGES for language, text in fences(page) for line in _of(language, text)
    ]


def _of(language: str, text: str) -> list[str]:
    if language not in SHELLS | {""}:
        return []
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    elif not language and not (lines and STARTS.match(lines[0])):
        return []
    return [found for line in lines if (found := _without_comment(line))]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#(?=\s|$).*", "", line).strip()


def rule_of(command: Command) -> Rule | None:
    """What becomes of a command; None when nobody has said it."""
    return next((rule for rule in RULES if re.match(rule.pattern, command.text)), None)
