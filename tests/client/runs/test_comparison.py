"""Rows that are chosen from results: which strata a table shows."""

from tauscope_client.metrics import DEFINITIONS
from tauscope_client.runs.comparison import ENGINES, HEADLINES, strata_rows, used_definitions


def one(label, num_prompts):
    return {"label": label, "estimate": 2.0, "low": None, "high": None, "num_prompts": num_prompts}


def test_strata_of_few_prompts_stay_out_of_a_short_table_and_in_a_long_one():
    strata = {
        "language": [one("de", 3), one("fr", 1), one("en", 4)],
        "answer position": [one("0-32", 9), one("32-64", 2)],
    }
    drafters = {"a": {"strata": strata}}
    assert {name: [row.label for row in rows] for name, rows in strata_rows(drafters).items()} == {
        "language": ["de", "fr", "en"],
        "answer position": ["0-32", "32-64"],
    }
    short = strata_rows(drafters, min_prompts=3)
    assert {name: [row.label for row in rows] for name, rows in short.items()} == {"language": ["de", "en"]}
    assert strata_rows(drafters)["language"][1].cells == ("2.00, 1 prompt",)


def test_everything_that_rows_show_is_defined_trees_once_for_all_budgets():
    values = {"tau": 2.0, "ddtree_tau_16": 3.0, "ddtree_tau_64": 4.0}
    results = {"sampling": None, "definitions": dict(DEFINITIONS), "drafters": {"a": {"overall": {"values": values}}}}
    found = dict(used_definitions(results))
    assert "the M most probable prefixes" in found["DDTree tau, M nodes"] and "expected" not in " ".join(found)
    shown = {line.label for line in HEADLINES}
    assert shown <= set(found)
    engines = set(dict(used_definitions(results, with_engines=True))) - set(found)
    assert engines == {line.label for line in ENGINES}
    sampled = dict(used_definitions(results | {"sampling": {"temperature": 1.0, "words": "sampled"}}))
    assert "expectation, not a count" in sampled["expected tau, sampled drafts"]
