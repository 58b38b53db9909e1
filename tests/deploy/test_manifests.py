"""Units, containers and manifests name only flags, routes and settings that exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
import yaml

import tauscope_drafter.cli
import tauscope_target.cli
from kit.echo import Echo
from kit.serve import running
from tauscope_serving import program

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = ("target", "drafter")
PORTS = {"target": 30010, "drafter": 30020}


def flags_of(service: str) -> set[str]:
    app = {"target": tauscope_target.cli.app, "drafter": tauscope_drafter.cli.app}[service]
    command = typer.main.get_command(app)
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def check_flags(service: str, words: list[str]) -> None:
    used = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert used
    assert not set(used) - flags_of(service)


@pytest.fixture(scope="module")
def routes() -> set[str]:
    with running(Echo().app) as url:
        paths = ("/healthz", "/readyz", "/metrics")
        return {path for path in paths if httpx.get(url + path).status_code == 200}


def unit_of(service: str) -> str:
    return (DEPLOY / "box" / "units" / f"tauscope-{service}.service").read_text()


def variables(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_uses_flags_that_exist_and_exactly_the_variables_of_its_settings(service: str) -> None:
    unit, settings = unit_of(service), (DEPLOY / "box" / f"{service}.env").read_text()
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    check_flags(service, start.split())
    check_flags(service, [w for line in settings.splitlines() for w in re.findall(r"--[a-z-]+", line)])
    used = set(re.findall(r"\$\{?([A-Z_]+)\}?", unit))
    known = set(variables(settings))
    assert used <= known
    assert {name for name in known if name.startswith(service.upper())} == used


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_bounds_memory_yields_to_the_engine_and_is_started_when_ready(service: str) -> None:
    unit, settings = unit_of(service), variables((DEPLOY / "box" / f"{service}.env").read_text())
    for line in ("MemoryMax=", "MemorySwapMax=0", "OOMScoreAdjust=600", "User=@USER@", "Slice=tauscope.slice"):
        assert f"\n{line}" in unit
    assert re.search(r"^After=.*@SGLANG_UNIT@", unit, re.MULTILINE)
    assert f"wait-ready ${{{service.upper()}_READY_URL}}" in unit
    assert settings[f"{service.upper()}_READY_URL"] == f"http://127.0.0.1:{PORTS[service]}/readyz"
    assert "memory" in unit.partition("ExecStart=")[2].partition("\n")[0]


def test_the_units_do_not_restart_what_trying_again_cannot_help() -> None:
    codes = {program.EXIT_USAGE, program.EXIT_CHECKPOINT, program.EXIT_REFUSED}
    for service in SERVICES:
        line = next(line for line in unit_of(service).splitlines() if line.startswith("RestartPreventExitStatus="))
        assert set(map(int, line.partition("=")[2].split())) == codes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in ("target", "drafter"):
        (tmp_path / f"{name}.env").touch()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    values = {"@USER@": "root", "@SGLANG_UNIT@": "sglang.service", "@WAIT_FOR_SGLANG@": f"ExecStartPre={program} x 1"}
    paths = []
    for path in sorted((DEPLOY / "box" / "units").iterdir()):
        text = path.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        text = re.sub(r"@PREFIX@/(venv/)?bin/[a-z-]+", str(program), text).replace("@PREFIX@", str(tmp_path))
        assert "@" not in text
        paths.append(tmp_path / path.name)
        paths[-1].write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", *map(str, paths)], capture_output=True, text=True, check=False
    )
    ours = [line for line in verified.stderr.splitlines() if "tauscope" in line]
    assert not ours


def compose() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return dict(document["services"])


def test_compose_uses_flags_that_exist_and_starts_in_order_of_readiness(routes: set[str]) -> None:
    services = compose()
    for service in SERVICES:
        check_flags(service, services[service]["command"])
        assert services[service]["command"][0] == f"tauscope-{service}"
        probe = " ".join(services[service]["healthcheck"]["test"])
        assert f"127.0.0.1:{PORTS[service]}/readyz" in probe
    assert "/readyz" in routes
    assert services["target"]["depends_on"] == {"sglang": {"condition": "service_healthy"}}
    assert services["drafter"]["depends_on"] == {"target": {"condition": "service_healthy"}}


def test_compose_opens_nothing_beyond_loopback_and_hardens_its_containers() -> None:
    for name, service in compose().items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        if name in SERVICES:
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["mem_limit"] == service["memswap_limit"]
            assert any(word.startswith("--keys=") for word in service["command"])


def test_compiled_kernels_outlive_the_containers_of_compose() -> None:
    document = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    made = re.search(r"install --directory --mode=1777 (\S+)", (DEPLOY / "containers" / "Dockerfile").read_text())
    assert made is not None
    for service in SERVICES:
        found = document["services"][service]
        mounts = dict(entry.split(":", 1) for entry in found["volumes"] if not entry.startswith("${"))
        (place,) = [mounts[volume] for volume in document["volumes"]]
        assert place == made[1], "a new volume takes its mode from the folder of the image"
        assert all(path.startswith(f"{place}/") for path in found["environment"].values())


def test_every_variable_that_compose_requires_is_in_the_example() -> None:
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    example = variables((DEPLOY / "compose" / ".env.example").read_text())
    assert set(re.findall(r"\$\{([A-Z_]+):\?", text)) <= set(example)
    assert set(example) <= set(re.findall(r"\$\{([A-Z_]+)", text))


def manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    return [doc for name in names for doc in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]


@pytest.mark.parametrize("service", SERVICES)
def test_a_deployment_uses_flags_and_routes_that_exist_and_cannot_write_its_root(
    service: str, routes: set[str]
) -> None:
    found = {(doc["kind"], doc["metadata"]["name"]): doc for doc in manifests()}
    spec = found["Deployment", f"tauscope-{service}"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    check_flags(service, container["command"])
    assert container["command"][0] == f"tauscope-{service}"
    port = container["ports"][0]["containerPort"]
    assert f"--port={port}" in container["command"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] in routes
        assert get["port"] == container["ports"][0]["name"]
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 600  # a lost device is fatal, a slow pass is not
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "memory" in container["resources"]["limits"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    service_port = found["Service", f"tauscope-{service}"]["spec"]["ports"][0]
    assert service_port["port"] == port == PORTS[service]
    labels = spec["template"]["metadata"]["labels"]
    assert found["Service", f"tauscope-{service}"]["spec"]["selector"].items() <= labels.items()
    assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_the_network_policy_names_pods_and_ports_that_exist() -> None:
    docs = manifests()
    (policy,) = [doc for doc in docs if doc["kind"] == "NetworkPolicy"]
    deployments = [doc for doc in docs if doc["kind"] == "Deployment"]
    selector = policy["spec"]["podSelector"]["matchLabels"]
    assert all(selector.items() <= doc["spec"]["template"]["metadata"]["labels"].items() for doc in deployments)
    assert {port["port"] for port in policy["spec"]["ingress"][0]["ports"]} == set(PORTS.values())


def test_the_image_runs_as_nobody_and_copies_only_what_is_built() -> None:
    text = (DEPLOY / "containers" / "Dockerfile").read_text()
    final = text.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final
    copied = [
        word
        for line in text.splitlines()
        if line.startswith("COPY") and "--from" not in line
        for word in shlex.split(line)[1:-1]
    ]
    root = DEPLOY.parent
    assert copied
    assert all((root / word).exists() for word in copied)
    kept = {
        line.lstrip("!")
        for line in (DEPLOY / "containers" / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert {word.removeprefix("./") for word in copied} == kept
