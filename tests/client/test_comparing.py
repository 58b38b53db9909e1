"""Comparisons of drafters of one run and of two, and what is refused."""

import json

import pytest

from kit.client import PROMPTS, eval_settings, table_services
from kit.engines import TableModel
from tauscope_client import load_run
from tauscope_client.cli import main
from tauscope_client.comparing import compare_sides, parse_side
from tauscope_client.evaluate import evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_wire.errors import MismatchError, NotFoundError, RequestError


def run(services, prompts_path, out, settings=None):
    with services.addresses().open_both() as (target, drafter):
        return evaluate(
            settings or eval_settings(),
            load_prompts(prompts_path),
            out,
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )


def test_two_drafters_of_a_run_are_paired_by_prompt(services, prompts_path, tmp_path):
    outcome = run(services, prompts_path, tmp_path / "run")
    found = compare_sides(parse_side(f"{tmp_path}/run:bad"), parse_side(f"{tmp_path}/run:good"))
    tau = found.statistics["tau"]
    values = {name: drafter["overall"]["values"]["tau"] for name, drafter in outcome.results["drafters"].items()}
    assert (tau.before, tau.after) == (values["bad"], values["good"])
    assert tau.difference.estimate == pytest.approx(values["good"] - values["bad"])
    assert tau.wins_before + tau.wins_after + tau.ties == len(PROMPTS)
    assert found.reasons == ()


def test_two_runs_over_the_same_frozen_text_can_be_compared(services, prompts_path, tmp_path):
    run(services, prompts_path, tmp_path / "one", eval_settings("good"))
    run(services, prompts_path, tmp_path / "two", eval_settings("bad"))
    found = compare_sides(parse_side(f"{tmp_path}/two"), parse_side(f"{tmp_path}/one"))
    assert found.reasons == () and found.statistics["tau"].difference.num_prompts == 3


def test_runs_over_other_text_are_refused_with_every_reason_unless_forced_and_then_marked(
    services, prompts_path, tmp_path, capsys
):
    run(services, prompts_path, tmp_path / "one", eval_settings("good"))
    prompts_path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS[:2]))
    with table_services(model=TableModel(seed=5), target={"reference_kernels": True}) as others:
        run(others, prompts_path, tmp_path / "two", eval_settings("good", max_new_tokens=30))
    sides = [f"{tmp_path}/one", f"{tmp_path}/two"]
    with pytest.raises(MismatchError) as caught:
        compare_sides(*map(parse_side, sides))
    for words in (
        "settings.max_new_tokens: 40 and 30",
        "target.numerics.reference_kernels: False and True",
        "1 prompts are in one run only, first 'c'",
        "references differ for 2 of 2 prompts",
    ):
        assert words in caught.value.message
    assert main(["compare", *sides]) == 4
    assert main(["compare", *sides, "--force", "--json", str(tmp_path / "c.json")]) == 0
    assert "forced, although settings.max_new_tokens" in capsys.readouterr().out
    written = json.loads((tmp_path / "c.json").read_text())
    assert written["is_forced"] is True and len(written["reasons_against"]) == 4


def test_a_side_must_name_a_run_and_one_of_its_drafters(services, prompts_path, tmp_path):
    run(services, prompts_path, tmp_path / "run")
    with pytest.raises(RequestError, match="the run has 2 drafters, say which"):
        parse_side(f"{tmp_path}/run")
    with pytest.raises(NotFoundError, match="no drafter 'ugly' in this run; it has good, bad"):
        parse_side(f"{tmp_path}/run:ugly")
    with pytest.raises(RequestError, match="no run there"):
        parse_side(f"{tmp_path}/none:x")


def test_a_run_reads_back_as_rows_and_traces(services, prompts_path, tmp_path):
    outcome = run(services, prompts_path, tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert loaded.results == outcome.results
    assert loaded.turn_ids == [prompt["id"] for prompt in PROMPTS]
    rows = [row for row in loaded.round_rows() if row["drafter"] == "good"]
    tau = outcome.results["drafters"]["good"]["overall"]["values"]["tau"]
    assert sum(row["emitted"] for row in rows) / len(rows) == pytest.approx(tau)
    assert loaded.prompt_rows()[0]["tag_split"] == "train"
    reference = loaded.references["a"]
    assert "".join(loaded.texts["a"]) == "".join(map(chr, [*reference.token_ids(), *reference.tail_ids]))
    assert loaded.trace("good", "a").anchors[0] == len(reference.prompt_ids)


def test_data_frames_come_when_pandas_is_there(services, prompts_path, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is an extra (tauscope[report])")
    run(services, prompts_path, tmp_path / "run")
    frame = load_run(tmp_path / "run").rounds()
    assert isinstance(frame, pandas.DataFrame) and set(frame["drafter"]) == {"good", "bad"}
