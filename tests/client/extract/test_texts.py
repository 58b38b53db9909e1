"""Lines of a data set."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauscope_client.extract.json_array import ArrayError, array_elements
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
        ('{"text": "x"}\nnope\n', ":2: not JSON; one JSON object or list of ids a line"),
        ('[{"text": "x"}\n{"text": "y"}]', ":2: expected ',' or ']' after an element"),
        ('[{"text": "x"},\n{"text": "y"}\n', ":2: the array has no end"),
        ('[{"text": "x"}] []', ":1: text after the end"),
        ('[\n{"text": nope}]', ":2: not JSON: Expecting value"),
        ("[" * 100_000, ":1: nested too deeply"),
        ("\n\n", "holds no texts"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_line(tmp_path, content, reason):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(PromptFileError, match=reason):
        list(read_texts(path))


def entries(path, content):
    path.write_text(content)
    return [(name, text.token_ids, text.text) for _, name, text in read_texts(path)]


IDS = [[1, 2], [3], [4, 5, 6]]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(IDS),
        json.dumps(IDS, indent=2),
        "\n\n  " + json.dumps(IDS) + "\n",
        "\ufeff" + json.dumps(IDS),
        "".join(json.dumps(ids) + "\n" for ids in IDS),
        json.dumps([{"token_ids": ids} for ids in IDS], indent=1),
    ],
)
def test_lists_of_ids_are_read_from_lines_and_from_an_array_alike(tmp_path, content):
    found = entries(tmp_path / "ids.json", content)
    assert [list(ids) for _, ids, _ in found] == IDS
    assert len({name for name, _, _ in found}) == 3


def test_one_list_of_ids_alone_is_one_text(tmp_path):
    assert [ids for _, ids, _ in entries(tmp_path / "ids.json", "[1, 2, 3]\n")] == [(1, 2, 3)]


def test_an_array_gives_what_lines_with_the_same_objects_give(tmp_path):
    rows = [{"id": "a", "text": 'x [\n] \\ " }'}, {"text": "y" * 300_000}, {"id": "c", "token_ids": [7] * 70_000}]
    by_line = entries(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)))
    assert entries(tmp_path / "x.json", json.dumps(rows, indent=2)) == by_line
    assert len(by_line) == 3


def test_an_element_that_is_no_text_is_left_out_and_the_others_are_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"text": "x"}, 5, [1, "a"], {"text": "y"}]')
    found = [text for _, _, text in read_texts(path)]
    assert [isinstance(text, TextError) for text in found] == [False, True, True, False]


@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=8) | st.floats(0, 1)))
def test_any_array_comes_apart_into_its_elements_at_any_size_of_the_pieces(values):
    for indent in (None, 3):
        found = list(array_elements(io.StringIO(json.dumps(values, indent=indent)), max_chars=10_000))
        assert [value for _, value in found] == values
        assert [line for line, _ in found] == sorted(line for line, _ in found)


def test_an_element_over_the_bound_is_an_error_that_names_its_line():
    with pytest.raises(ArrayError, match="more than 100 characters") as error:
        list(array_elements(io.StringIO('[1,\n"' + "x" * 200_000), max_chars=100))
    assert error.value.line == 2


def test_spans_and_masks_are_the_same_thing():
    mask = [1, 1, 0, 0, 1, 0, 1]
    sample = Sample(id="x", row=0, token_ids=tuple(range(7)), spans=spans_of(mask))
    assert sample.loss_mask().tolist() == mask and sample.num_loss_tokens == 4
    for length in range(8):
        assert sample.cut(length).loss_mask().tolist() == mask[:length]
    assert Sample.from_fields(json.loads(sample.to_line())) == sample
