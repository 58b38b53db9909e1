"""Expected tau under sampling: with chances of 0 and 1 it is tau itself; other weights are refused."""

import json

import pytest

from kit.client import eval_settings, table_services
from tauscope_client.cli import main
from tauscope_client.evaluate import evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource


def evaluated(services, prompts_path, out):
    with services.addresses().open_both() as (target, drafter):
        return evaluate(
            eval_settings(),
            load_prompts(prompts_path),
            out,
            target=target,
            drafter=drafter,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )


def test_with_certain_drafts_the_expectation_is_the_walk(services, prompts_path, tmp_path, capsys):
    results = evaluated(services, prompts_path, tmp_path / "run").results
    urls = ["--target", services.target_url, "--drafter-url", services.drafter_url]
    assert main(["expect", str(tmp_path / "run"), "-t", "0.5", "--top-k", "20", *urls]) == 0
    written = json.loads((tmp_path / "run" / "expected-t0.5-k20-p1.json").read_text())
    for name, found in written["drafters"].items():
        tau = results["drafters"][name]["overall"]["values"]["tau"]
        assert found["expected_tau_sampled"]["estimate"] == pytest.approx(tau)
        assert found["expected_tau_greedy"]["estimate"] == pytest.approx(tau)
        assert found["is_expectation"] is True
    assert "not a count" in capsys.readouterr().out


def test_states_that_vanish_are_computed_again(services, prompts_path, tmp_path):
    evaluated(services, prompts_path, tmp_path / "run")
    services.ledger.gone_after = 3
    urls = ["--target", services.target_url, "--drafter-url", services.drafter_url]
    assert main(["expect", str(tmp_path / "run"), "-d", "good", *urls]) == 0


def test_other_weights_than_those_of_the_run_are_refused(services, prompts_path, tmp_path, capsys):
    evaluated(services, prompts_path, tmp_path / "run")
    with table_services(drafter={"salts": {"good": 4, "bad": 1}}) as others:
        urls = ["--target", others.target_url, "--drafter-url", others.drafter_url]
        assert main(["expect", str(tmp_path / "run"), *urls]) == 4
    assert "'good' has other weights than in the run" in capsys.readouterr().err
