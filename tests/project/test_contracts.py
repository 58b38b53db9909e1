"""The rules of docs/architecture.md, run as tests."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "transformers", "fastapi", "uvicorn", "fla")


def modules_after(statement: str) -> set[str]:
    """Top-level modules in `sys.modules` of a fresh interpreter after a statement."""
    code = f"{statement}\nimport sys; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_import_contracts_hold() -> None:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_client_process_has_no_model_code_loaded() -> None:
    loaded = modules_after("import tauscope_client.cli, tauscope_client.evaluate")
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("package", ["tauscope_wire", "tauscope_serving"])
def test_shared_packages_never_load_torch(package: str) -> None:
    assert not modules_after(f"import {package}") & {"torch", "transformers"}


@pytest.mark.parametrize("script", sorted(PYPROJECT["project"]["scripts"]))
def test_help_of_every_console_script_loads_no_torch(script: str) -> None:
    module, _, function = PYPROJECT["project"]["scripts"][script].partition(":")
    loaded = modules_after(
        f"import sys; sys.argv = [{script!r}, '--help']\n"
        f"from {module} import {function}\n"
        f"try:\n    {function}()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert not loaded & {"torch", "transformers", "fla"}


def test_every_console_script_is_installed() -> None:
    installed = {e.name for e in entry_points(group="console_scripts") if e.value.startswith("tauscope_")}
    assert installed == set(PYPROJECT["project"]["scripts"])


def test_the_base_install_names_no_heavy_package() -> None:
    names = {d.split(">")[0].strip().lower() for d in PYPROJECT["project"]["dependencies"]}
    assert not names & {"torch", "transformers", "flash-linear-attention", "fastapi", "uvicorn", "pandas", "scipy"}
