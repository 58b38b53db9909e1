"""Other people's programs judge the files of deploy/: Kubernetes' own schemas, the compose specification, hadolint.

TAUSCOPE_TOOLS names the folder of their programs; `make manifests` installs them and runs this module. Every verifier
is shown a broken file as well: one that accepts anything would prove nothing.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
TOOLS = Path(os.environ.get("TAUSCOPE_TOOLS", "/nonexistent"))
COMPOSE_CHECK = Path(__file__).with_name("check_compose.py")

needs_tools = pytest.mark.skipif(not TOOLS.is_dir(), reason="TAUSCOPE_TOOLS names no folder; run `make manifests`")


def run(*words: str | Path, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*map(str, words)], input=text, capture_output=True, text=True, check=False, timeout=120)


@needs_tools
def test_kubernetes_schemas_know_every_field_of_the_manifests(tmp_path: Path) -> None:
    names = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    judged = run(TOOLS / "kubernetes-validate", "--strict", *[DEPLOY / "kubernetes" / name for name in names])
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert judged.stdout.count(" passed ") == 5
    broken = tmp_path / "broken.yaml"
    broken.write_text((DEPLOY / "kubernetes" / "target.yaml").read_text().replace("readinessProbe:", "readyProbe:"))
    assert run(TOOLS / "kubernetes-validate", "--strict", broken).returncode != 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, no cluster")
def test_kubectl_puts_the_manifests_together() -> None:
    made = run("kubectl", "kustomize", DEPLOY / "kubernetes")
    assert made.returncode == 0, made.stderr
    kinds = [doc["kind"] for doc in yaml.safe_load_all(made.stdout)]
    assert sorted(kinds) == ["Deployment", "Deployment", "NetworkPolicy", "Service", "Service"]


def interpolated(text: str) -> str:
    """What compose makes of variables: the value that must be set, or the default."""
    text = re.sub(r"\$\{[A-Z_]+:\?[^}]*\}", "/models/x", text)
    return yaml.safe_dump(yaml.safe_load(re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)))


@needs_tools
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("", ""),
        ("read_only:", "readonly:"),
        ("service_healthy", "service_fine"),
        ("127.0.0.1:30010:30010", "127.0.0.1:30010:x"),
    ],
)
def test_the_compose_file_is_one_of_the_specification(good: str, bad: str) -> None:
    text = interpolated((DEPLOY / "compose" / "compose.yaml").read_text())
    assert good in text
    judged = run(TOOLS / "python", COMPOSE_CHECK, text=text.replace(good, bad) if good else text)
    assert (judged.returncode == 0) == (not good), judged.stderr
    assert good or judged.stdout.split() == ["tauscope", "3"]


ACCEPTED = {
    "DL3008": "versions of gcc are the base image's business; a pinned one would be gone from the mirror in a month",
    "DL3059": "torch is a layer of its own, so that gigabytes stay when the source changes",
    "DL3064": "PYTHONDONTWRITEBYTECODE and TOKENIZERS_PARALLELISM hold no secret",
}
"""Findings of hadolint that are meant to be so."""


@needs_tools
def test_hadolint_finds_nothing_in_the_dockerfile_that_is_not_meant(tmp_path: Path) -> None:
    ignored = [word for code in ACCEPTED for word in ("--ignore", code)]
    judged = run(TOOLS / "hadolint", *ignored, DEPLOY / "containers" / "Dockerfile")
    assert judged.returncode == 0, judged.stdout
    broken = tmp_path / "Dockerfile"
    broken.write_text((DEPLOY / "containers" / "Dockerfile").read_text().replace("WORKDIR /tmp", "WORKDIR tmp"))
    assert run(TOOLS / "hadolint", *ignored, broken).returncode != 0
