"""Rows that are chosen from results: which strata a table shows."""

from tauscope_client.runs.comparison import strata_rows


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
