"""A report of a few hundred prompts: what a browser holds grows by one row a prompt, and by nothing else."""

import json
import re

import pytest

from kit.browser import chromium, look
from kit.client import eval_settings, table_services
from tauscope_client import load_run
from tauscope_client.evaluate import EvalSettings, evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.report import render_report

NUM_PROMPTS = 300
ROW_NODES = 7
"""Of one drafter: the row, its four cells, the link, and the element that holds the text unparsed."""

PAGE_NODES = 2000
"""Everything else on the page: tables, charts, definitions, the run's facts."""

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine (apt-get install chromium)")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    path = folder / "prompts.jsonl"
    records = [
        {"id": f"p{at}", "category": "even" if at % 2 else "odd", "text": f"text {at}"} for at in range(NUM_PROMPTS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = eval_settings("good", max_new_tokens=24)
    with table_services() as both, both.addresses().open_both() as (target, drafter):
        evaluate(
            EvalSettings(**{**vars(settings), "concurrency": 8}),
            load_prompts(path),
            folder / "run",
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )
    return load_run(folder / "run")


LOOK = """
const count = (selector) => page.querySelectorAll(selector).length;
const seen = { ready: page.documentElement.dataset.ready, rows: count("#prompts tbody tr") };
seen.atFirst = count("*");
seen.turnsAtFirst = count(".turn, .tok") - count(".key .tok");
seen.opened = [];
for (const index of [0, 150, 299, 7]) {
  page.querySelector('#prompts [data-open="' + index + '"]').click();
  seen.opened.push({ turns: count(".turn"), nodes: count("*"), inText: count("#text *") });
}
for (let step = 0; step < 40; step += 1) page.getElementById("next").click();
seen.id = page.getElementById("prompt-id").textContent;
seen.atLast = { turns: count(".turn"), nodes: count("*"), inText: count("#text *") };
page.querySelector('.turn[data-round="0"]').click();
page.querySelector('.turn[data-round="1"]').click();
seen.panels = count("#round h3");
return seen;
"""


def test_texts_are_drawn_when_they_are_opened_and_only_one_at_a_time(run):
    path = run.path / "report.html"
    path.write_text(render_report(run), encoding="utf-8")
    seen, _ = look(path, LOOK)
    assert seen["ready"] == "yes", seen
    assert seen["rows"] == NUM_PROMPTS and seen["turnsAtFirst"] == 0
    assert seen["atFirst"] - ROW_NODES * NUM_PROMPTS < PAGE_NODES
    rounds = [len(run.prompt("good", f"p{at}")["accepted"]) for at in (0, 150, 299, 7)]
    assert [one["turns"] for one in seen["opened"]] == rounds
    assert seen["id"] == "p47" and seen["atLast"]["turns"] == len(run.prompt("good", "p47")["accepted"])
    around = [one["nodes"] - one["inText"] for one in [*seen["opened"], seen["atLast"]]]
    assert len(set(around)) == 1, "what was opened before is left on the page"
    assert seen["panels"] == 1


def test_no_text_is_parsed_before_it_is_opened_and_charts_do_not_grow_with_prompts(run):
    page = render_report(run)
    assert len(re.findall(r'<script type="application/json" id="data-\d+">', page)) == NUM_PROMPTS
    # a point or a bar for each block position, rank, width, budget or stratum, never for each prompt
    assert (
        sum(len(re.findall(r"<(?:circle|rect|line|path|polyline|text)\b", svg)) for svg in page.split("<svg")[1:])
        < 1500
    )
