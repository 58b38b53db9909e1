"""The report: its numbers are those of results.json, clicking works in a browser, and no text becomes markup."""

import csv
import importlib.util
import json
import re

import pytest

from kit.browser import chromium, look, print_pdf
from kit.client import eval_settings
from tauscope_client import load_run
from tauscope_client.cli import main
from tauscope_client.evaluate import evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.report import render_report

HACK = "<img src=x onerror=\"document.documentElement.dataset.hacked='yes'\"></script><script>hacked()</script>"
PROMPTS = [
    {"id": "a", "split": "train", "category": HACK, "messages": [{"role": "user", "content": HACK}]},
    {"id": HACK, "split": "fresh", "category": "y", "text": f"raw {HACK} \u2028 & \\u003c"},
    {"id": "c", "split": "fresh", "category": "y", "text": "three"},
]
needs_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine (apt-get install chromium)")


@pytest.fixture
def run(services, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    with services.addresses().open_both() as (target, drafter):
        evaluate(
            eval_settings(trees=(16, 64)),
            load_prompts(path),
            tmp_path / "run",
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )
    return load_run(tmp_path / "run")


def test_the_page_is_one_file_without_network_and_without_foreign_markup(run):
    page = render_report(run)
    assert "<img" not in page and "hacked()</script>" not in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "url(" not in page and "@import" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src &#39;none&#39;") and "unsafe" not in policy
    assert page == render_report(run)


def test_the_command_writes_the_page_and_tables_for_notebooks(run, capsys):
    assert main(["report", str(run.path), "--csv"]) == 0
    assert "opens in any browser" in capsys.readouterr().out
    with (run.path / "rounds.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["drafter"] == "good"]
    assert sum(int(row["emitted"]) for row in rows) / len(rows) == pytest.approx(
        run.results["drafters"]["good"]["overall"]["values"]["tau"]
    )
    assert main(["report", str(run.path.parent)]) == 2
    assert "no run there" in capsys.readouterr().err


LOOK = """
const click = (selector) => page.querySelector(selector).click();
const all = (selector) => [...page.querySelectorAll(selector)].map((one) => one.textContent.trim());
const seen = { ready: page.documentElement.dataset.ready };
seen.cards = all(".card .value");
const cells = (row) => [...row.children].map((cell) => cell.textContent);
seen.numbers = [...page.querySelectorAll("#numbers tbody tr")].map(cells);
click('[data-chart="curve-teacher_forced_accuracy_all"]');
seen.charts = [...page.querySelectorAll("#figure-positions .chart:not(.other)")].map((chart) => chart.id);
seen.figures = all(".figure h2");
seen.hiddenBefore = page.getElementById("prompt").hidden;
click('#prompts [data-open="0"]');
seen.first = { id: page.getElementById("prompt-id").textContent, turns: page.querySelectorAll(".turn").length };
click("#next");
click('#who [data-drafter="1"]');
seen.second = { id: page.getElementById("prompt-id").textContent, turns: page.querySelectorAll(".turn").length };
seen.text = page.getElementById("text").textContent;
seen.given = page.querySelector("#text .given").textContent;
click('.turn[data-round="1"]');
seen.round = page.querySelector("#round h3").textContent;
seen.rows = page.querySelectorAll("#round tr").length;
seen.address = page.location.hash;
const filter = page.getElementById("filter");
filter.value = "train"; filter.dispatchEvent(new Event("input"));
seen.shown = page.getElementById("shown").textContent;
click('#prompts th:nth-child(4)'); click('#prompts th:nth-child(4)');
seen.order = all("#prompts tbody td:nth-child(4)").map(Number);
seen.images = page.images.length;
seen.hacked = page.documentElement.dataset.hacked || "no";
seen.overflow = page.documentElement.scrollWidth - page.documentElement.clientWidth;
return seen;
"""


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_numbers_of_the_results_and_clicking_through_prompts_works(run, width):
    path = run.path / "report.html"
    path.write_text(render_report(run), encoding="utf-8")
    seen, asked = look(path, LOOK, width=width)
    drafters = run.results["drafters"]
    assert seen["ready"] == "yes", seen
    assert seen["cards"] == [f"{drafters[name]['overall']['values']['tau']:.2f}" for name in ("good", "bad")]
    shown = {row[0]: row[1:] for row in seen["numbers"]}
    for label, name in (("tau", "tau"), ("top-8 streak", "topk_streak_8"), ("DDTree tau, 64 nodes", "ddtree_tau_64")):
        values = [drafter["overall"]["values"][name] for drafter in drafters.values()]
        assert [cell.split(" ")[0] for cell in shown[label]] == [f"{value:.3f}" for value in values]
    assert seen["charts"] == ["curve-teacher_forced_accuracy_all"]
    assert seen["figures"] == [
        "By position in the block",
        "Accepted drafts of a round",
        "Where the right token stands",
        "If fewer drafts are verified",
        "With trees instead of a chain",
        "tau by stratum",
    ]
    rounds = [len(run.prompt(name, turn_id)["accepted"]) for name, turn_id in (("good", "a"), ("bad", HACK))]
    assert seen["hiddenBefore"] is True
    assert (seen["first"], seen["second"]) == ({"id": "a", "turns": rounds[0]}, {"id": HACK, "turns": rounds[1]})
    assert seen["given"] == "".join(run.texts[HACK][: len(run.references[HACK].prompt_ids)])
    second = run.prompt("bad", HACK)
    assert seen["round"].startswith(f"Round 2: {second['accepted'][1]} draft")
    assert seen["address"] == "#prompt-2-2-round-2"
    assert seen["shown"] == "1 of 3"
    assert seen["order"] == sorted(seen["order"], reverse=True)
    assert (seen["images"], seen["hacked"]) == (0, "no")
    assert seen["overflow"] <= 0
    assert set(asked) <= {"/driver.html", "/report.html", "/favicon.ico"}


@needs_browser
def test_an_address_opens_its_prompt_drafter_and_round(run):
    path = run.path / "report.html"
    path.write_text(render_report(run), encoding="utf-8")
    script = "return [page.getElementById('prompt-id').textContent, page.querySelector('#round h3').textContent];"
    (name, title), _ = look(path, script, hash_part="#prompt-3-1-round-2")
    assert name == "c" and title.startswith("Round 2: ")


UNFOLDED = """
const view = page.defaultView, folded = () => page.querySelectorAll("details:not([open])").length;
const seen = [folded()];
view.dispatchEvent(new view.Event("beforeprint"));
seen.push(folded());
view.dispatchEvent(new view.Event("afterprint"));
return [...seen, folded(), page.querySelectorAll(".many .chart b.print").length];
"""


@needs_browser
def test_printing_unfolds_what_is_folded_names_every_chart_and_fits_a_few_pages(run):
    path = run.path / "report.html"
    path.write_text(render_report(run), encoding="utf-8")
    (before, printing, after, labels), _ = look(path, UNFOLDED)
    assert before > 0 and (printing, after) == (0, before)
    assert labels >= 6  # the six curves at least, whose names stand on buttons otherwise
    pdf = print_pdf(path)
    assert pdf.startswith(b"%PDF-") and 2 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 9


def test_parquet_holds_the_rounds_with_their_types(run):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra (tauscope[report])")
    assert main(["report", str(run.path), "--parquet"]) == 0
    table = parquet.read_table(run.path / "rounds.parquet")
    emitted = [row["emitted"] for row in table.to_pylist() if row["drafter"] == "good"]
    tau = run.results["drafters"]["good"]["overall"]["values"]["tau"]
    assert sum(emitted) / len(emitted) == pytest.approx(tau)


def test_estimates_that_were_asked_for_are_on_the_page_and_marked(run):
    assert 'id="estimates"' not in render_report(run)
    assert main(["speed", str(run.path), "--target-ms", "20", "--draft-ms", "5"]) == 0
    estimates = {"estimate": 2.5, "low": 2.0, "high": 3.0, "num_prompts": 3, "warning": None, "level": 0.95}
    expected = {name: {"expected_tau_sampled": estimates, "expected_tau_greedy": estimates} for name in run.drafters}
    sampling = {"temperature": 0.7, "top_k": 0, "top_p": 0.95}
    content = {"schema": "tauscope.expectation/1", "sampling": sampling, "drafters": expected}
    (run.path / "expected-t0.7-k0-p0.95.json").write_text(json.dumps(content))
    page = re.sub(r"<[^>]+>", "", render_report(run))
    assert "estimates and expectations, not counts" in page
    tau = run.results["drafters"]["good"]["overall"]["values"]["tau"]
    assert f"{tau * 20 / 25:.3f}" in page and "speed-up over plain decoding, for the costs given" in page
    assert "5 ms given" in page and "20 ms given" in page and "20 ms assumed" in page
    assert "Costs of the estimated speed-up: target step given by --target-ms" in page
    assert "expected tau, sampled drafts (temperature 0.7, top_p 0.95)" in page and "2.500 (2.00 to 3.00)" in page


def test_the_conclusion_names_the_winner_whichever_comes_first(run):
    page = re.sub(r"<[^>]+>", "", render_report(run))
    found = run.results["comparisons"][0]["statistics"]["tau"]
    wins, losses = found["wins_before"], found["wins_after"]
    if found["verdict"] == "the first is better":
        assert "good is better than bad" in page and f"better on {wins}, worse on {losses}" in page
    else:
        assert "No difference found between bad and good" in page or "Cannot tell bad from good" in page


def test_without_pyarrow_parquet_says_what_to_install(run, capsys):
    if importlib.util.find_spec("pyarrow") is not None:
        pytest.skip("pyarrow is installed here")
    assert main(["report", str(run.path), "--parquet"]) == 2
    assert "pip install 'tauscope[report]'" in capsys.readouterr().err
