"""The commands and snippets of the pages for other teams, run word for word against a service with keys."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgpack
import numpy as np
import pytest
import typer
from fastapi import FastAPI
from safetensors import safe_open
from typer.testing import CliRunner

from kit.echo import Echo
from kit.logs import own_logs
from kit.models import tiny_qwen3
from kit.serve import SMALL_LIMITS, running
from tauscope_client.cli import main
from tauscope_drafter.cli import main as drafter_main
from tauscope_serving.errors import STATUS
from tauscope_serving.keyfile import add_key
from tauscope_serving.keys import Keyring
from tauscope_serving.keys_command import keys_app
from tauscope_serving.service import Access
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.tokens import load_tokens
from tauscope_wire.errors import ErrorCode

DOCS = Path(__file__).parents[2] / "docs"


class Service(NamedTuple):
    """A target with 33 layers, so that layer 31 is one of them."""

    url: str
    key: str


@pytest.fixture(autouse=True)
def root_handlers() -> Iterator[None]:
    with own_logs():
        yield


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("docs")
    folder = tiny_qwen3(root / "model", num_hidden_layers=33, hidden_size=32, intermediate_size=32)
    keys = root / "keys.json"
    key = add_key(keys, "team", roles=("read", "extract"))
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS, keys_file=keys), store_bytes=1 << 24)
    app: FastAPI = create_app(
        start_engine(EngineSettings(folder, "cpu")),
        load_tokens(folder),
        settings,
        access=Access(keyring=Keyring(keys)),
    )
    with running(app) as url:
        yield Service(url, key)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_three_lines_of_python_give_layer_31(service: Service) -> None:
    names: dict[str, Any] = {"URL": service.url, "KEY": service.key}
    for block in blocks("share-with-other-teams.md", "python"):
        exec(block, names)
    layer = names["layer_31"]
    body = {"text": "The capital of France is", "layers": [31], "dtype": "float32"}
    exact = msgpack.unpackb(
        httpx.post(
            f"{service.url}/hidden_states", json=body, headers={"Authorization": f"Bearer {service.key}"}
        ).content
    )
    expected = np.frombuffer(exact["chunks"][0]["data"][0], "<f4").reshape(layer.shape)
    assert np.allclose(layer, expected, rtol=2**-8, atol=1e-6)  # bfloat16 keeps 8 bits


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_line_gives_a_file_that_msgpack_reads(service: Service, tmp_path: Path) -> None:
    (line,) = [block for block in blocks("share-with-other-teams.md", "sh") if block.startswith("curl")]
    environment = {"URL": service.url, "KEY": service.key, "PATH": "/usr/bin:/bin"}
    subprocess.run(["sh", "-c", line], check=True, cwd=tmp_path, env=environment)
    assert msgpack.unpackb((tmp_path / "layer31.msgpack").read_bytes())["planes"] == [31]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js and npm")
def test_the_javascript_block_reads_the_same_numbers(service: Service, tmp_path: Path) -> None:
    (block,) = blocks("share-with-other-teams.md", "js")
    (tmp_path / "layer.mjs").write_text(block)
    (tmp_path / "package.json").write_text("{}")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "@msgpack/msgpack"]
    if subprocess.run(install, cwd=tmp_path, capture_output=True, check=False, timeout=120).returncode:
        pytest.skip("npm cannot install @msgpack/msgpack here")
    environment = dict(os.environ) | {"URL": service.url, "KEY": service.key, "NO_COLOR": "1"}
    said = subprocess.run(
        ["node", "layer.mjs"], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    names: dict[str, Any] = {"URL": service.url, "KEY": service.key}
    for python in blocks("share-with-other-teams.md", "python"):
        exec(python, names)
    planes, shape, first = re.findall(r"\[[^]]*\]|\S+$", said.stdout.strip())
    assert json.loads(planes) == [31]
    assert json.loads(shape) == [1, *names["layer_31"].shape]
    assert float(first) == float(names["layer_31"].flat[0])


@pytest.mark.slow
def test_the_client_line_gives_safetensors(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = [block for block in blocks("share-with-other-teams.md", "sh") if block.startswith("tauscope hidden")]
    words = [word.strip("\"'") for word in re.findall(r"'[^']*'|\S+", line)][1:]
    values = {"$URL": service.url, "$KEY": service.key}
    monkeypatch.chdir(tmp_path)
    assert main([values.get(word, word) for word in words]) == 0
    with safe_open(tmp_path / "layer31.safetensors", framework="np") as file:
        assert any("31" in name for name in file.keys())  # noqa: SIM118


def test_the_key_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.add_typer(keys_app(), name="keys")
    lines = blocks("share-with-other-teams.md", "sh")[0].splitlines()
    assert len(lines) == 3
    for line in lines:
        assert CliRunner().invoke(app, line.split()[1:]).exit_code == 0


def test_the_table_of_statuses_is_that_of_the_services() -> None:
    text = (DOCS / "http-api.md").read_text()
    documented = {int(status) for status in re.findall(r"^\| (\d{3}) \|", text, re.MULTILINE)}
    assert documented == set(STATUS.values()) | {405}
    codes = {code.value for code in ErrorCode}
    named = {
        code for row in re.findall(r"^\| \d{3} \|(.*?)\|", text, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)
    }
    assert named <= codes


def test_the_bounds_on_callers_in_the_page_are_those_of_the_code() -> None:
    from tauscope_serving import answers, bodies, connections

    text = (DOCS / "http-api.md").read_text()
    assert f"disconnected after {connections.HEAD_TIMEOUT_S:.0f} s" in text
    assert f"400 after {connections.MAX_HEAD_BYTES >> 10} KiB" in text
    assert (
        f"504 after {bodies.BODY_GRACE_S:.0f} s plus a second for each {bodies.SLOWEST_BYTES_PER_S >> 10} KiB" in text
    )
    assert f"beyond {bodies.IN_FLIGHT_BYTES >> 30} GiB that are being received" in text
    assert f"longer than {answers.SLICE_TIMEOUT_S:.0f} s" in text


def test_the_routes_of_the_health_table_answer_as_it_says() -> None:
    with running(Echo().app) as url:
        assert [httpx.get(url + path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]


def source_text() -> str:
    """All code of the packages, its adjacent string literals joined as the language joins them."""
    root = DOCS.parent
    files = [f for folder in ("client", "services") for f in sorted((root / folder).rglob("*.py"))]
    return re.sub(r"[\"']\n\s*f?[\"']", "", "\n".join(file.read_text() for file in files))


def test_the_messages_of_the_faq_are_those_of_the_code() -> None:
    """Each heading quotes a message; what varies in it is an ellipsis."""
    headings = re.findall(r"^### `(.*)`$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert len(headings) > 15
    code = source_text()
    for heading in headings:
        pieces = [piece.strip() for piece in heading.split("…") if len(piece.strip()) > 5]
        assert pieces, heading
        for piece in pieces:
            assert piece in code, f"{heading}: no message says {piece!r}"


def test_every_format_and_family_of_the_code_is_on_the_page_about_formats() -> None:
    from tauscope_drafter.checkpoint import detect, options, pickles
    from tauscope_drafter.families.names import FAMILIES

    page = (DOCS / "formats.md").read_text()
    source = Path(detect.__file__).read_text()
    formats = set(re.findall(r'return verdict\("([\w-]+)"', source))
    assert len(formats) > 8
    named = {*formats, *FAMILIES, *pickles.STATE_KEYS, *(field.name for field in fields(options.LoadOptions))}
    assert not [name for name in sorted(named) if f"`{name}`" not in page and f"`{name}=" not in page]


def test_inspect_prints_what_the_page_about_formats_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DOCS.parent)
    (command,) = [block for block in blocks("formats.md", "sh") if "inspect" in block]
    (shown, _) = re.findall(r"^```\n(.*?)^```", (DOCS / "formats.md").read_text(), re.MULTILINE | re.DOTALL)
    assert drafter_main(command.split()[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    expected = shown.splitlines()[:-1]  # the last line stands for the rest
    assert [line.rstrip() for line in printed[: len(expected)]] == expected


def test_a_bare_training_checkpoint_lacks_what_the_page_about_formats_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(DOCS.parent / "deploy" / "demo" / "models" / "drafter-b" / "checkpoint.pt", tmp_path)
    monkeypatch.chdir(tmp_path)
    quoted = re.findall(r"^```\n(error.*?)^```", (DOCS / "formats.md").read_text(), re.MULTILINE | re.DOTALL)
    service = ["--target-url", "http://127.0.0.1:1", "--device", "cpu", "--port", "0"]
    service += ["--target-model", str(DOCS.parent / "deploy" / "demo" / "models" / "target")]
    assert drafter_main([*service, "--drafter", "early=checkpoint.pt"]) == 3
    assert capsys.readouterr().err.split() == quoted[0].split()
