"""Sampled references: how they were sampled is written down, their headline is an expectation, greedy is kept apart."""

import json
from contextlib import closing

import pytest

from kit.client import eval_settings
from kit.engines import STOP_ID, TableModel, Talk, openai_app, sglang_app
from kit.serve import running
from tauscope_client import load_run
from tauscope_client.cli import main
from tauscope_client.evaluate import evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references import Turn
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.references.sglang import SglangSource
from tauscope_client.report import render_report
from tauscope_wire.errors import RequestError

WARM = TextSampling(temperature=0.7, top_k=20, top_p=0.9, seed=5)


def run(services, prompts_path, out, *, sampling=WARM):
    with services.addresses().open_both() as (target, drafter):
        return evaluate(
            eval_settings(trees=(16,), sampling=sampling),
            load_prompts(prompts_path),
            out,
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )


def test_the_headline_is_the_expectation_and_settings_and_seeds_are_recorded(services, prompts_path, tmp_path):
    results = run(services, prompts_path, tmp_path / "run").results
    loaded = load_run(tmp_path / "run")
    assert results["sampling"]["temperature"] == 0.7 and "top_k 20, top_p 0.9" in results["sampling"]["words"]
    for name, reference in loaded.references.items():
        assert (reference.temperature, reference.top_k, reference.top_p) == (0.7, 20, 0.9)
        assert reference.seed == WARM.for_turn(name).seed and reference.tail_ids == []
    assert len({reference.seed for reference in loaded.references.values()}) == 3
    for drafter in results["drafters"].values():
        values = drafter["overall"]["values"]
        # The drafter of the tests accepts with chance 0 or 1: the expected walk is the walk.
        assert values["expected_tau_sampled"] == pytest.approx(values["tau"])
        assert values["expected_tau_greedy"] == pytest.approx(values["tau"])
        assert drafter["overall"]["intervals"]["expected_tau_sampled"]["estimate"] == pytest.approx(values["tau"])
        assert values["ddtree_tau_16"] >= values["tau"]  # a draw for this text, exact like the walk of the chain
        for name in ("context length", "answer position"):
            strata = drafter["strata"][name]
            counted = sum(stratum["num_counted"] for stratum in strata)
            assert counted == pytest.approx(drafter["overall"]["counts"]["num_rounds"])
            tokens = sum(stratum["estimate"] * stratum["num_counted"] for stratum in strata)
            assert tokens / counted == pytest.approx(values["tau"])
    assert "expected_tau_sampled" in results["comparisons"][0]["statistics"]
    assert "agreement" not in " ".join(results["warnings"])
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert summary.startswith("# expected tau of good and bad")
    assert "| expected tau, sampled drafts |" in summary and "| tau (matches with this one sample) |" in summary
    assert "| DDTree tau, 16 nodes (matches with this one sample) |" in summary
    assert "expected tau of good, bad" in render_report(loaded)
    rates = [row for row in loaded.prompt_rows() if row["drafter"] == "good"]
    assert all(row["expected_tau_sampled"] >= 1 for row in rates)


def test_a_run_is_continued_only_with_the_same_sampling_and_asks_for_nothing_twice(services, prompts_path, tmp_path):
    first = run(services, prompts_path, tmp_path / "run")
    services.ledger.reset()
    again = run(services, prompts_path, tmp_path / "run")
    assert again.results == first.results and again.is_resumed
    assert not services.ledger.calls
    urls = ["--target", services.target_url, "--drafter-url", services.drafter_url, "--out", str(tmp_path / "run")]
    limits = ["--max-new-tokens", "40", "--tail-tokens", "4", "--tree-budgets", "none"]
    assert main(["eval", str(prompts_path), "-d", "good", "-d", "bad", *limits, *urls]) == 4


def test_greedy_and_sampled_runs_are_never_compared_forced_or_not(services, prompts_path, tmp_path, capsys):
    run(services, prompts_path, tmp_path / "warm")
    run(services, prompts_path, tmp_path / "cold", sampling=GREEDY)
    sides = [f"{tmp_path / 'warm'}:good", f"{tmp_path / 'cold'}:good"]
    assert main(["compare", *sides, "--force"]) == 4
    assert "never compared, forced or not" in capsys.readouterr().err
    assert main(["compare", f"{tmp_path / 'warm'}:good", f"{tmp_path / 'warm'}:bad"]) == 0
    assert "expected_tau_sampled: " in capsys.readouterr().out


def test_frozen_sampled_texts_keep_their_settings_and_are_not_taken_for_greedy_ones(
    services, prompts_path, tmp_path, capsys
):
    frozen = tmp_path / "refs.jsonl"
    urls = ["--target", services.target_url]
    asked = ["--temperature", "0.7", "--sample-top-k", "20", "--seed", "5", "--max-new-tokens", "40"]
    assert main(["references", str(prompts_path), "-o", str(frozen), *asked, *urls]) == 0
    seeds = [json.loads(line)["seed"] for line in frozen.read_text().splitlines()]
    urls += ["--drafter-url", services.drafter_url, "-r", f"file={frozen}", "-d", "good"]
    assert main(["eval", str(prompts_path), "--out", str(tmp_path / "run"), *urls]) == 0
    assert "sampled at temperature 0.7, top_k 20" in capsys.readouterr().out
    loaded = load_run(tmp_path / "run")
    assert [reference.seed for reference in loaded.references.values()] == seeds
    assert main(["eval", str(prompts_path), "--out", str(tmp_path / "cold"), "--temperature", "0", *urls]) == 4
    assert "greedy and sampled texts are never mixed" in capsys.readouterr().err


def test_a_seed_belongs_to_the_turn_and_values_out_of_range_are_refused():
    assert WARM.for_turn("a") == WARM.for_turn("a") != WARM.for_turn("b")
    assert GREEDY.for_turn("a") == GREEDY
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}):
        with pytest.raises(RequestError):
            TextSampling(**wrong)


def turn():
    return Turn(id="p", prompt_ids=[5, 6, 7], max_new_tokens=8, stop_token_ids=[STOP_ID], sampling=WARM)


def test_engines_are_told_temperature_limits_and_seed():
    sglang, vllm = Talk(), Talk()
    with running(sglang_app(TableModel(), sglang)) as url, closing(EngineHttp(url)) as http:
        SglangSource(http, None).complete(turn())
    sent = sglang.bodies[-1]["sampling_params"]
    assert [sent[key] for key in ("temperature", "top_k", "top_p", "sampling_seed")] == [0.7, 20, 0.9, 5]
    with running(openai_app(TableModel(), vllm)) as url, closing(EngineHttp(url)) as http:
        OpenAISource(http, None).complete(turn())
    assert [vllm.bodies[-1][key] for key in ("temperature", "top_k", "top_p", "seed")] == [0.7, 20, 0.9, 5]
