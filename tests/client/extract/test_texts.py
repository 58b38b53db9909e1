"""Lines of a data set."""

import json

import pytest

from tauscope_client.extract.sample import Sample, spans_of
from tauscope_client.extract.texts import TextError, read_texts, text_of
from tauscope_client.prompts import PromptFileError


@pytest.mark.parametrize(
    ("value", "ids", "mask"),
    [
        ({"prompt_ids": [1, 2], "response_ids": [3]}, (1, 2, 3), (0, 0, 1)),
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]}, (1, 2, 3), (0, 1, 0)),
        ({"token_ids": [1, 2, 3], "response_start": 1}, (1, 2, 3), (0, 1, 1)),
        ({"token_ids": [1, 2]}, (1, 2), (0, 0)),
    ],
)
def test_ids_come_with_the_mask_that_their_line_gives(value, ids, mask):
    text = text_of(value, "x")
    assert (text.token_ids, text.loss_mask) == (ids, mask)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ],
)
def test_conversations_keep_the_answers(value):
    assert [(m.role, m.content) for m in text_of(value, "x").messages] == [("user", "a"), ("assistant", "b")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"input_ids": [1, 2], "loss_mask": [1]}, "loss_mask: expected 2 values"),
        ({"input_ids": [1, -2]}, "input_ids: expected a list of token ids"),
        ({"input_ids": [1, True]}, "input_ids: expected a list of token ids"),
        ({"prompt_ids": [1], "response_ids": []}, "response_ids"),
        ({"token_ids": [1], "response_start": 2}, "response_start=2: expected 0..1"),
        ({"messages": []}, "messages: expected a list of turns"),
        ({"messages": [{"role": "king", "content": "x"}]}, r"messages\[0\]"),
        ({"question": "x"}, "its keys are: question"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(value, reason):
    with pytest.raises(TextError, match=reason):
        text_of(value, "x")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', r":2: id 'a' was already used at line 1"),
        ('{"text": "x"}\nnope\n', ":2: not JSON; one JSON object a line"),
        ("[1]\n", ":1: not a JSON object"),
        ("\n\n", "holds no texts"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_line(tmp_path, content, reason):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(PromptFileError, match=reason):
        list(read_texts(path))


def test_spans_and_masks_are_the_same_thing():
    mask = [1, 1, 0, 0, 1, 0, 1]
    sample = Sample(id="x", row=0, token_ids=tuple(range(7)), spans=spans_of(mask))
    assert sample.loss_mask().tolist() == mask and sample.num_loss_tokens == 4
    for length in range(8):
        assert sample.cut(length).loss_mask().tolist() == mask[:length]
    assert Sample.from_fields(json.loads(sample.to_line())) == sample
