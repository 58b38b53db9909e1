"""Whether answers think is read from their text, and told apart from what the drafters were trained on."""

import json

import pytest

from kit.client import eval_settings, table_services
from tauscope_client.evaluate import EvalSettings, evaluate
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.runs.thinking import AnswerModes, mode_of, thinking_cautions, trained_mode

ASKED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "answer", "mode"),
    [
        (ASKED, "<think>\nhm\n</think>\n\nHello", "on"),
        (ASKED, "<think>\n\n</think>\n\nHello", "off"),
        (ASKED, "<think>\nhm, cut at the limit", "on"),
        (ASKED + "<think>\n", "hm\n</think>\n\nHello", "on"),
        (ASKED + "<think>\n", "\n</think>\n\nHello", "off"),
        (ASKED + "<think>\n\n</think>\n\n", "Hello", "off"),
        (ASKED, "Hello", None),
        (ASKED, "The mark <think> opens a thought", None),
        ("what does <think> do? " + ASKED, "It opens a thought", None),
        ("<think>\nold\n</think>\nyes" + ASKED, "Hello", None),
        ("", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", "on"),
        ("", "[THINK]hm[/THINK]Hello", "on"),
    ],
)
def test_a_thought_is_seen_whoever_opened_it_and_an_empty_one_says_off(prompt, answer, mode):
    assert mode_of(prompt, answer) == mode


def test_training_is_read_from_the_options_of_its_template():
    def recorded(kwargs):
        return trained_mode({"training_numerics": {"template_kwargs": kwargs}})

    assert recorded({"enable_thinking": False}) == "off" and recorded({"thinking": True}) == "on"
    assert recorded({"enable_thinking": "maybe"}) is None and recorded({}) is None
    assert trained_mode({"training_numerics": None}) is None


def test_each_disagreement_is_one_line_and_agreement_none():
    thinking = AnswerModes(("a", "b"), (), 3)
    plain = AnswerModes((), ("a",), 1)
    (line,) = thinking_cautions(thinking, {"x": "off", "y": "off", "z": "on"})
    assert "2 of 3 answers think (a, b)" in line and "drafters 'x' and 'y' were trained with thinking off" in line
    (line,) = thinking_cautions(plain, {"x": "on"})
    assert "1 of 1 answers do not think (a), but drafter 'x' was trained with thinking on" in line
    (line,) = thinking_cautions(thinking, {"x": None, "z": "on"})
    assert "whether drafter 'x' was trained on thinking is not recorded" in line and "--trained-thinking" in line
    assert thinking_cautions(thinking, {"z": "on"}) == thinking_cautions(plain, {"x": "off", "y": None}) == []
    assert thinking_cautions(AnswerModes((), (), 5), {"x": "on", "y": None}) == []


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Warnings about thinking of an evaluation, by what the user and the files say about training."""
    folder = tmp_path_factory.mktemp("thinking")
    path = folder / "prompts.jsonl"
    path.write_text(json.dumps({"id": "deep", "text": "why?<think>\n"}) + "\n" + json.dumps({"id": "b", "text": "b"}))

    def run(number, trained=None, **files):
        with table_services(drafter=files) as both, both.addresses().open_both() as (target, drafter):
            results = evaluate(
                EvalSettings(**{**vars(eval_settings("good")), "trained_thinking": trained}),
                load_prompts(path),
                folder / str(number),
                target=target,
                drafter=drafter,
                source=EmbeddedSource(target),
                progress=SilentProgress(),
            ).results
        return [warning for warning in results["warnings"] if " think" in warning and "answers" in warning]

    off = {"training": {"template_kwargs": {"enable_thinking": False}}}
    return {"nobody": run(0), "user": run(1, "off"), "files": run(2, **off), "both": run(3, "on", **off)}


def test_an_evaluation_warns_by_the_answers_themselves(said):
    assert len(said["nobody"]) == 1 and "1 of 2 answers think (deep)" in said["nobody"][0]
    assert "not recorded" in said["nobody"][0]
    for who in ("user", "files"):
        assert len(said[who]) == 1 and "trained with thinking off" in said[who][0]
    assert said["both"] == []  # the user knows better than the files
