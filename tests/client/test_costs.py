"""Costs for the estimate of a speed-up: measured where they run, told apart from given ones, never mixed silently."""

import json

import pytest

from kit.client import eval_settings, table_services
from tauscope_client import load_run
from tauscope_client.cli import main
from tauscope_client.costs import Cost, assumed, draft_cost, given, spread, step_cost
from tauscope_client.evaluate import evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.record import Served
from tauscope_client.references.source import Completion
from tauscope_client.references.stored import StoredSource
from tauscope_client.report.estimates import estimate_notes, estimate_rows
from tauscope_client.runs.files import write_json
from tauscope_client.speed_estimates import estimate_speeds
from tauscope_wire.errors import MismatchError, RequestError


@pytest.fixture(scope="module")
def both():
    with table_services() as running:
        yield running


@pytest.fixture(scope="module")
def run(both, tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": f"text {name}"}) + "\n" for name in "abc"))
    with both.addresses().open_both() as (target, drafter):
        evaluate(
            eval_settings(),
            load_prompts(path),
            folder / "run",
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )
    return load_run(folder / "run")


class Server:
    """Takes 70 ms a request, 300 ms more for a prompt it has not seen, and 25 ms for each token after the first."""

    name = "clocked"

    def __init__(self, *, speculating=False, served=None):
        self.now, self.seen, self.speculating, self.served = 0.0, set(), speculating, served

    def facts(self):
        return {"kind": "clocked", "speculating": self.speculating}

    def complete(self, turn):
        key = tuple(turn.prompt_ids)
        self.now += 0.07 + 0.3 * (key not in self.seen) + 0.025 * (turn.max_new_tokens - 1)
        self.seen.add(key)
        return Completion(response_ids=[5] * turn.max_new_tokens, finish_reason="length", served=self.served)


def step(run, both, server):
    with both.addresses().open_target() as target:
        return step_cost(run, server, target=target, num_tokens=9, num_texts=2, clock=lambda: server.now)


def test_a_step_is_free_of_prefill_and_of_what_every_request_costs(run, both):
    found = step(run, both, Server())
    assert found.ms == pytest.approx(25.0) and found.origin == "measured" and found.device is None
    assert "median of 2 texts" in found.words and "does not name" in found.words


def test_a_server_that_speculates_is_refused_whether_it_says_so_or_only_its_counters_do(run, both):
    for server in (Server(speculating=True), Server(served=Served(completion_tokens=9, verify_steps=3))):
        with pytest.raises(MismatchError, match="--target-ms"):
            step(run, both, server)
    assert "whether it speculates it does not say" in step(run, both, Server(speculating=None)).words


def test_a_file_takes_no_time(run, both):
    with both.addresses().open_target() as target, pytest.raises(RequestError, match="a file of references takes no"):
        stored = StoredSource(run.path / "references.jsonl")
        step_cost(run, stored, target=target, num_tokens=9, num_texts=2, clock=lambda: 0.0)


def test_drafts_are_timed_one_at_a_time_at_visited_anchors(run, both):
    both.ledger.reset()
    with both.addresses().open_both() as (target, drafter):
        found = draft_cost(run, drafter.card("good"), target=target, drafter=drafter, num_rounds=6)
    assert (found.ms, found.device) == (1.0, "cpu")  # as the service of the tests says
    assert both.ledger.count("draft") == 3 * (2 + 1)  # of each text two, and one before them
    assert "median of 6 rounds" in found.words


def test_the_command_measures_what_is_not_given_and_says_what_it_is_about(run, both, capsys):
    urls = ["--target", both.target_url, "--drafter-url", both.drafter_url]
    assert main(["speed", str(run.path), "--target-ms", "3", *urls]) == 0
    said = capsys.readouterr().out
    assert "estimated speed-up over plain decoding, on cpu" in said
    assert "target step: 3 ms, given by --target-ms" in said and "measured by the drafter service on cpu" in said
    assert "says nothing about a GPU" in said and "one cost is measured and one given" in said
    found = json.loads((run.path / "speed.json").read_text())
    tau = run.results["drafters"]["good"]["overall"]["values"]["tau"]
    assert found["drafters"]["good"]["speed_up"] == pytest.approx(tau * 3 / (1 + 3))
    assert found["verification"]["origin"] == "assumed" and found["drafters"]["good"]["draft"]["origin"] == "measured"


def test_nothing_is_asked_of_services_when_everything_is_given(run):
    nobody = ["--target", "http://127.0.0.1:9", "--drafter-url", "http://127.0.0.1:9"]
    assert main(["speed", str(run.path), "--target-ms", "20", "--draft-ms", "5", "--verify-ms", "22", *nobody]) == 0
    found = json.loads((run.path / "speed.json").read_text())
    assert (found["cautions"], found["holds"]) == ([], "for the costs given")
    assert found["verification"]["ms"] == 22


def measured(device):
    return Cost(ms=10.0, origin="measured", words="measured", device=device)


def test_a_draft_on_a_cpu_is_never_put_together_with_a_server_of_another_kind(run):
    with pytest.raises(MismatchError, match="no estimate of anything"):
        estimate_speeds(run, {"good": measured("cpu")}, step=measured(None), verification=assumed(10.0))
    gpu = measured("cuda (NVIDIA H200)")
    found = estimate_speeds(run, {"good": gpu}, step=measured(None), verification=assumed(10.0))
    assert found.holds == "on cuda (NVIDIA H200)" and found.cautions == ()


def test_an_estimate_of_a_cpu_says_that_a_verification_costs_more_there(run):
    cpu = measured("cpu")
    found = estimate_speeds(run, {"good": cpu}, step=measured("cpu (Xeon)"), verification=assumed(10.0))
    cautions = " ".join(found.cautions)
    assert found.is_upper_bound and "upper bound" in cautions and "no inference engine" in cautions
    assert found.holds == "on cpu (Xeon)"
    known = given(150.0, "--verify-ms")
    found = estimate_speeds(run, {"good": cpu}, step=cpu, verification=known)
    assert not found.is_upper_bound and "upper bound" not in " ".join(found.cautions)


def test_the_report_calls_a_bound_a_bound(run):
    cpu = measured("cpu")
    found = estimate_speeds(run, {"good": cpu}, step=cpu, verification=assumed(10.0))
    write_json(run.path / "speed.json", found.to_dict())
    (_, cells, _), (_, costs, _), *_ = estimate_rows(run, ["good"])
    assert cells[0].startswith("below ") and costs == ("10 ms measured",)
    assert estimate_notes(run)[-1].endswith("name one with --reference.")


def test_a_sample_is_spread_evenly():
    assert spread(list(range(10)), 3) == [0, 3, 6] and spread([1, 2], 5) == [1, 2] and spread([], 3) == []
