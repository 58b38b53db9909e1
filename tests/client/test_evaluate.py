"""One evaluation from prompts to numbers, resumed after kills, refused under other settings."""

import json

import numpy as np
import pytest

from kit.client import PROMPTS, eval_settings, table_services
from kit.engines import STOP_ID, TableModel, Talk, encode, render, sglang_app
from kit.serve import running
from kit.table_services import right_draft
from tauscope_client.evaluate import EvalSettings, evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_client.runs.draft_files import read_drafts
from tauscope_client.runs.lock import FolderLock
from tauscope_client.runs.text_checks import is_looping
from tauscope_wire.errors import GoneError, MismatchError, NotFoundError, RequestError

QUICK = Retries(attempts=2, sleep=lambda _: None)


def run(services, prompts_path, out, settings=None, *, source=None):
    with services.addresses().open_both() as (target, drafter):
        return evaluate(
            settings or eval_settings(),
            load_prompts(prompts_path),
            out,
            target=target,
            drafter=drafter,
            source=source or EmbeddedSource(target, retries=QUICK),
            progress=SilentProgress(),
            retries=QUICK,
        )


def walk_by_hand(model, prompt_ids, salt, *, limit=40, drafts=4):
    """Accepted and emitted of every round, one round after the other, as a server would."""
    text = [*prompt_ids, *model.generate(prompt_ids, limit)]
    anchor, accepted, emitted = len(prompt_ids), [], []
    while anchor < len(text) - 1:
        matched = 0
        while matched < drafts and right_draft(salt, anchor, matched):
            matched += 1
        left = len(text) - 1 - anchor
        accepted.append(min(matched, left))
        emitted.append(min(matched + 1, left))
        anchor += matched + 1
    return accepted, emitted


def prompt_ids_of(prompt):
    return encode(prompt["text"]) if "text" in prompt else encode(render(prompt["messages"]))


def test_every_round_of_every_prompt_equals_a_walk_by_hand(services, prompts_path, tmp_path):
    outcome = run(services, prompts_path, tmp_path / "run")
    assert outcome.failures == ()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    for name, salt in (("good", 0), ("bad", 1)):
        rounds = {p["prompt_id"]: (p["accepted"], p["emitted"]) for p in results["drafters"][name]["prompts"]}
        assert list(rounds) == [prompt["id"] for prompt in PROMPTS]
        by_hand = {p["id"]: walk_by_hand(services.model, prompt_ids_of(p), salt) for p in PROMPTS}
        assert rounds == by_hand
        every = [count for _, emitted in by_hand.values() for count in emitted]
        assert results["drafters"][name]["overall"]["values"]["tau"] == pytest.approx(sum(every) / len(every))
    assert list(results["drafters"]["good"]["splits"]) == ["train", "fresh"]
    assert results["drafters"]["good"]["overall"]["values"]["agreement"] == 1.0
    assert results["drafters"]["good"]["overall"]["values"]["tau_unclipped"] is not None


def test_states_are_computed_once_for_all_drafters_and_never_fetched(services, prompts_path, tmp_path):
    run(services, prompts_path, tmp_path / "run")
    assert services.ledger.count("hidden") == len(PROMPTS)
    assert services.ledger.count("draft") == 2 * len(PROMPTS)
    assert services.ledger.count("generate") == len(PROMPTS)


def test_a_finished_run_asks_nothing_again_and_gives_the_same_bytes(services, prompts_path, tmp_path):
    out = tmp_path / "run"
    run(services, prompts_path, out)
    before, calls = (out / "results.json").read_bytes(), len(services.ledger.calls)
    assert run(services, prompts_path, out).is_resumed
    assert len(services.ledger.calls) == calls
    assert (out / "results.json").read_bytes() == before


def test_a_killed_run_is_continued_without_repeating_finished_work(services, prompts_path, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    run(services, prompts_path, whole)
    run(services, prompts_path, out)
    # As a kill leaves it: one reference torn in the middle of its line, one drafter's file of another prompt not there.
    lines = (out / "references.jsonl").read_bytes().splitlines(keepends=True)
    (out / "references.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    (out / "drafts" / "bad" / "a.npz").unlink()
    (out / "drafts" / "bad" / ".a.npz.1.part").write_bytes(b"half")
    (out / "results.json").unlink()
    services.ledger.calls.clear()
    outcome = run(services, prompts_path, out)
    assert outcome.is_resumed and outcome.failures == ()
    assert services.ledger.count("generate") == 1
    assert [detail[0] for name, detail in services.ledger.calls if name == "draft"] == ["bad"]
    assert (out / "results.json").read_bytes() == (whole / "results.json").read_bytes()


def test_a_drafter_can_be_added_to_a_run_and_drafts_on_the_same_references(services, prompts_path, tmp_path):
    out = tmp_path / "run"
    run(services, prompts_path, out, eval_settings("good"))
    outcome = run(services, prompts_path, out, eval_settings("good", "bad"))
    assert services.ledger.count("generate") == len(PROMPTS)
    assert set(outcome.results["drafters"]) == {"good", "bad"}
    with pytest.raises(MismatchError, match="drafter 'bad' is part of that run"):
        run(services, prompts_path, out, eval_settings("good"))


def test_other_settings_are_refused_by_name_and_value_and_nothing_is_touched(services, prompts_path, tmp_path):
    out = tmp_path / "run"
    run(services, prompts_path, out)
    before = {path: path.read_bytes() for path in out.rglob("*.json*")}
    with pytest.raises(MismatchError, match=r"settings\.max_new_tokens: 40 there, 20 now"):
        run(services, prompts_path, out, eval_settings(max_new_tokens=20))
    prompts_path.write_text(json.dumps(PROMPTS[0]) + "\n")
    with pytest.raises(MismatchError, match=r"prompts\.sha256"):
        run(services, prompts_path, out)
    assert {path: path.read_bytes() for path in out.rglob("*.json*")} == before


def test_two_runs_in_one_folder_are_refused(services, prompts_path, tmp_path):
    with FolderLock(tmp_path / "run"), pytest.raises(MismatchError, match="another run is writing there"):
        run(services, prompts_path, tmp_path / "run")
    assert run(services, prompts_path, tmp_path / "run").failures == ()


def test_a_folder_with_other_things_in_it_is_refused(services, prompts_path, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="not empty and not a run folder"):
        run(services, prompts_path, tmp_path)


def test_handles_that_vanish_are_computed_again(services, prompts_path, tmp_path):
    services.ledger.gone_after = 2
    outcome = run(services, prompts_path, tmp_path / "run")
    assert outcome.failures == ()
    assert services.ledger.count("hidden") == len(PROMPTS) + 2


def test_a_store_that_loses_everything_ends_the_run_with_a_reason(services, prompts_path, tmp_path):
    services.ledger.gone_after = 10**6
    with pytest.raises(GoneError, match="store is too small"):
        run(services, prompts_path, tmp_path / "run")


def test_a_prompt_over_the_limit_fails_alone(services, prompts_path, tmp_path):
    with prompts_path.open("a") as file:
        file.write(json.dumps({"id": "long", "text": "x" * 400}) + "\n")
    outcome = run(services, prompts_path, tmp_path / "run")
    assert [(f.id, f.stage, f.code) for f in outcome.failures] == [("long", "reference", "prompt_too_long")]
    assert "has 400 tokens; the target service takes 400" in outcome.failures[0].message
    assert outcome.results["num_prompts"] == len(PROMPTS)
    assert json.loads((tmp_path / "run" / "failures.json").read_text())[0]["id"] == "long"


def test_a_drafter_that_fails_on_one_prompt_leaves_it_out_of_every_table(services, prompts_path, tmp_path):
    services.ledger.fail = {len(encode("raw text"))}
    outcome = run(services, prompts_path, tmp_path / "run")
    assert [(f.id, f.stage) for f in outcome.failures] == [("b/β", "draft good")]
    assert [len(d["prompts"]) for d in outcome.results["drafters"].values()] == [2, 2]
    assert any("left out of every table" in warning for warning in outcome.results["warnings"])


def test_anchors_over_the_limit_of_a_request_are_asked_in_parts(services, prompts_path, tmp_path):
    prompts_path.write_text(json.dumps({"id": "x", "text": "go"}) + "\n")
    with table_services(model=TableModel(stop_share=0.0)) as both:
        run(both, prompts_path, tmp_path / "run", eval_settings("good", max_new_tokens=250))
        assert both.ledger.count("draft") == 3
    drafts = read_drafts(tmp_path / "run" / "drafts" / "good" / "x.npz")
    assert drafts.anchors.tolist() == list(range(2, 2 + 250 - 1))
    assert drafts.top_ids.shape == (249, 4, 8) and drafts.top_logprobs.dtype == np.float32


def test_a_response_that_is_over_at_once_has_no_round_and_asks_no_draft(prompts_path, tmp_path):
    model = TableModel()
    model.table[:] = STOP_ID
    with table_services(model=model) as both:
        outcome = run(both, prompts_path, tmp_path / "run")
        assert both.ledger.count("draft") == 0
    overall = outcome.results["drafters"]["good"]["overall"]
    assert (overall["values"]["tau"], overall["counts"]["num_empty"]) == (None, 3)


def test_a_head_that_is_not_loaded_makes_agreement_null(prompts_path, tmp_path):
    with table_services(target={"mode_cannot": ["logits: the head is not loaded"]}) as both:
        outcome = run(both, prompts_path, tmp_path / "run")
    assert outcome.results["drafters"]["good"]["overall"]["values"]["agreement"] is None
    assert any("does not hold its head" in warning for warning in outcome.results["warnings"])


def test_references_that_are_not_the_targets_own_are_warned_of(prompts_path, tmp_path):
    with table_services(target={"own": TableModel(seed=9)}) as both:
        outcome = run(both, prompts_path, tmp_path / "run")
    assert outcome.results["drafters"]["good"]["overall"]["values"]["agreement"] < 0.5
    assert any(warning.startswith("agreement is") for warning in outcome.results["warnings"])
    found = outcome.results["disagreements"]
    agreement = outcome.results["drafters"]["good"]["overall"]["values"]["agreement"]
    assert 1 - found["num_disagreements"] / found["num_positions"] == pytest.approx(agreement)
    # The table target puts its own choice at -0.1 and any other token of the text at -4.0.
    assert (found["num_near_ties"], found["largest_gap"]) == (0, 3.9)


def test_a_drafter_for_another_target_is_refused_before_any_work(prompts_path, tmp_path):
    with (
        table_services(drafter={"hidden_size": 16}) as both,
        pytest.raises(MismatchError, match="reads hidden states of size 16, the target table-model has 8"),
    ):
        run(both, prompts_path, tmp_path / "run")
    assert both.ledger.calls == [] and not (tmp_path / "run").exists()
    with (
        table_services(drafter={"other_target": True}) as both,
        pytest.raises(MismatchError, match=r"works with another target: its revision is sha256:9999"),
    ):
        run(both, prompts_path, tmp_path / "run")


def test_an_unknown_drafter_names_the_loaded_ones(services, prompts_path, tmp_path):
    with pytest.raises(NotFoundError, match=r"no drafter 'ugly' at .*; loaded are: bad, good"):
        run(services, prompts_path, tmp_path / "run", eval_settings("ugly"))


def test_a_prompt_that_renders_to_other_ids_than_the_file_pins_ends_the_run(services, prompts_path, tmp_path):
    prompts_path.write_text(json.dumps({"id": "x", "text": "go", "prompt_ids": [1, 2, 3]}) + "\n")
    with pytest.raises(MismatchError, match="another tokenizer, chat template or template kwargs"):
        run(services, prompts_path, tmp_path / "run")


def test_conversations_ask_each_turn_after_the_models_own_answer(services, prompts_path, tmp_path):
    prompts_path.write_text(json.dumps({"question_id": 7, "category": "qa", "turns": ["one", "two"]}) + "\n")
    outcome = run(services, prompts_path, tmp_path / "run")
    first, second = (json.loads(line) for line in (tmp_path / "run" / "references.jsonl").read_text().splitlines())
    answer = "".join(chr(i) for i in first["response_ids"] if i >= 9)
    history = [("user", "one"), ("assistant", answer), ("user", "two")]
    assert second["prompt_ids"] == encode(render([{"role": role, "content": text} for role, text in history]))
    assert (second["id"], second["conversation"], second["turn"], second["tags"]["turn"]) == ("7@2", "7", 2, "2")
    assert [p["prompt_id"] for p in outcome.results["drafters"]["good"]["prompts"]] == ["7", "7@2"]
    good = outcome.results["drafters"]["good"]
    assert good["overall"]["intervals"]["tau"]["num_prompts"] == 1  # one conversation, however many turns
    assert good["overall"]["intervals"]["tau"]["estimate"] == good["overall"]["values"]["tau"]
    assert outcome.results["comparisons"][0]["statistics"]["tau"]["difference"]["num_prompts"] == 1
    only_first = run(services, prompts_path, tmp_path / "first", eval_settings(max_turns=1))
    assert only_first.results["num_prompts"] == 1


def test_several_prompts_in_flight_give_the_same_results(services, prompts_path, tmp_path):
    one = run(services, prompts_path, tmp_path / "one", eval_settings())
    settings = eval_settings(concurrency=3)
    many = run(services, prompts_path, tmp_path / "many", settings)
    assert one.results == many.results


@pytest.mark.parametrize("budgets", [(16,), (16, 64)])
def test_trees_that_stored_rows_cannot_decide_are_settled_by_wider_rows(prompts_path, tmp_path, budgets):
    settings = eval_settings("good", trees=budgets)
    narrow = EvalSettings(**{**vars(settings), "top_k": 2})
    with table_services() as both:
        wide = run(both, prompts_path, tmp_path / "wide", EvalSettings(**{**vars(settings), "top_k": 64}))
        asked = both.ledger.count("draft")
        outcome = run(both, prompts_path, tmp_path / "narrow", narrow)
        assert both.ledger.count("draft") > 2 * asked
    names = [f"ddtree_tau_{budget}" for budget in budgets]
    values = [
        {name: o.results["drafters"]["good"]["overall"]["values"][name] for name in names} for o in (wide, outcome)
    ]
    assert values[0] == values[1] and all(value is not None for value in values[0].values())
    (tmp_path / "narrow" / "trees" / "good" / "a.npz").unlink()
    with table_services() as both:
        again = run(both, prompts_path, tmp_path / "narrow", narrow)
        assert both.ledger.count("hidden") == 1 and both.ledger.count("generate") == 0
    assert again.results == outcome.results


class FickleSource(EmbeddedSource):
    """A server that changes the fourth token of an answer when it is asked once more."""

    name = "fickle"

    def __init__(self, target):
        super().__init__(target, retries=QUICK)
        self.asked = set()

    def complete(self, turn):
        completion = super().complete(turn)
        if turn.id in self.asked:
            completion.response_ids[3] += 1
        self.asked.add(turn.id)
        return completion


def test_a_server_that_does_not_repeat_itself_is_found_out_once(services, prompts_path, tmp_path):
    settings = EvalSettings(**{**vars(eval_settings("good")), "num_repeats": 2})
    with services.addresses().open_target() as target:
        source = FickleSource(target)
        outcome = run(services, prompts_path, tmp_path / "run", settings, source=source)
        asked = services.ledger.count("generate")
        again = run(services, prompts_path, tmp_path / "run", settings, source=source)
    assert asked == len(PROMPTS) + 2 * 2 == services.ledger.count("generate")
    (warning,) = [w for w in outcome.results["warnings"] if "does not repeat itself" in w]
    assert "2 otherwise again and 2 otherwise warm" in warning and "'a' from token 3 on" in warning
    assert again.results == outcome.results


def test_strata_and_comparisons_hold_every_round_once(services, prompts_path, tmp_path):
    results = run(services, prompts_path, tmp_path / "run").results
    for name, drafter in results["drafters"].items():
        assert list(drafter["strata"]) == ["split", "category", "context length", "answer position"], name
        for strata in drafter["strata"].values():
            assert sum(stratum["num_counted"] for stratum in strata) == drafter["overall"]["counts"]["num_rounds"]
    (pair,) = results["comparisons"]
    taus = [results["drafters"][pair[side]]["overall"]["values"]["tau"] for side in ("before", "after")]
    assert pair["statistics"]["tau"]["difference"]["estimate"] == pytest.approx(taus[1] - taus[0])
    low, high = (results["drafters"]["good"]["overall"]["intervals"]["tau"][end] for end in ("low", "high"))
    assert low < taus[0] < high


def test_prompts_that_look_random_to_the_target_are_warned_of(prompts_path, tmp_path):
    # The table target gives -4.0 to every prompt token it would not have chosen: for 128 tokens that is above
    # 0.8 x ln(128) = 3.88, as random tokens are.
    with table_services() as both:
        outcome = run(both, prompts_path, tmp_path / "run")
    assert any("look like random tokens" in warning for warning in outcome.results["warnings"])


def test_an_answer_that_ends_in_a_loop_is_told_from_one_that_lists():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 1000, 200).tolist()
    assert not is_looping(text)
    assert not is_looping([5] * 40)  # too short to tell
    assert is_looping([*text, *([7, 8, 9, 10, 11] * 20)])
    listed = [token for item in range(20) for token in (1, 2, 100 + item, 3)]  # a list whose items differ
    assert not is_looping([*text, *listed])


def test_a_run_with_all_references_goes_on_without_the_reference_server(services, prompts_path, tmp_path):
    settings = EvalSettings(**{**vars(eval_settings("good")), "num_repeats": 2})
    with running(sglang_app(services.model, Talk())) as url:
        http = EngineHttp(url, retries=QUICK)
        source = SglangSource(http, None)
        first = run(services, prompts_path, tmp_path / "run", settings, source=source)
        http.close()
    (tmp_path / "run" / "drafts" / "good" / "a.npz").unlink()
    (tmp_path / "run" / "stability.json").unlink()
    http = EngineHttp(url, retries=QUICK)
    again = run(services, prompts_path, tmp_path / "run", settings, source=SglangSource(http, None))
    http.close()
    assert first.results["stability"]["num_asked"] == 2 and again.results["stability"] is None
    assert again.results == first.results | {"stability": None}


def test_a_thinking_mode_unlike_the_training_is_warned_of(prompts_path, tmp_path):
    with table_services(drafter={"training": {"template_kwargs": {"enable_thinking": False}}}) as both:
        thinking = run(both, prompts_path, tmp_path / "on", eval_settings(template_kwargs={"enable_thinking": True}))
        plain = run(both, prompts_path, tmp_path / "off", eval_settings(template_kwargs={"enable_thinking": False}))
    assert any("unlike the training's" in warning for warning in thinking.results["warnings"])
    assert not any("unlike the training's" in warning for warning in plain.results["warnings"])
