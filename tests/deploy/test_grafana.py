"""The dashboard and the alerts name only metrics and labels that running services really have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kit.serve import running

DEPLOY = Path(__file__).parents[2] / "deploy" / "grafana"
PROMQL = {"sum", "rate", "by", "histogram_quantile", "increase", "le"}


@pytest.fixture
def exposed(target_app: Any, drafter_app: Any) -> dict[str, set[str]]:
    """Sample name to its label names, after a little use of both services."""
    found: dict[str, set[str]] = {}
    for app in (target_app, drafter_app):
        with running(app) as url:
            for path in ("/info", "/nowhere"):
                httpx.get(url + path)
            httpx.post(f"{url}/hidden_states", json={"token_ids": [5, 6], "layers": [1]})
            text = httpx.get(f"{url}/metrics").text
        for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", text, re.MULTILINE):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        for name in re.findall(r"^# TYPE (\w+) histogram", text, re.MULTILINE):
            for suffix in ("sum", "count", "bucket"):
                found.setdefault(f"{name}_{suffix}", set())
        for name in re.findall(r"^# TYPE (\w+) counter", text, re.MULTILINE):
            found.setdefault(name if name.endswith("_total") else f"{name}_total", set())
    return found


def expressions() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "tauscope.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_every_metric_of_dashboard_and_alerts_is_exposed(exposed: dict[str, set[str]]) -> None:
    used = {name for text in expressions() for name in re.findall(r"\btauscope_(?:target|drafter)_\w+", text)}
    assert len(used) > 15
    assert not used - set(exposed)


def test_every_label_that_a_panel_groups_by_is_on_its_metric(exposed: dict[str, set[str]]) -> None:
    for text in expressions():
        names = re.findall(r"\btauscope_(?:target|drafter)_\w+", text)
        for group in re.findall(r"by \(([^)]*)\)", text):
            for label in group.replace(" ", "").split(","):
                known = {"le", "instance"} | {have for name in names for have in exposed[name]}
                assert label in known or not any(exposed[name] for name in names)


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    panels = json.loads((DEPLOY / "tauscope.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells
        assert all(0 <= x < 24 for x, _ in covered)
        cells |= covered


def test_the_scrape_configuration_loads_and_names_both_services() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:30010", "127.0.0.1:30020"]
    assert all((DEPLOY / name).exists() for name in document["rule_files"])
