"""Prompt files as people have them, and what a malformed one gets."""

import json
from pathlib import Path

import pytest

from tauscope_client.prompts import PromptFileError, find_prompts, load_prompts
from tauscope_wire.errors import ErrorCode


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_own_format_keeps_order_split_and_every_plain_field_as_a_tag(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"id": "b", "split": "fresh", "category": "write", "level": 3, "hard": True, "notes": ["x"], "text": "def f"},
        "",
        {
            "id": "a",
            "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}],
            "prompt_ids": [1, 2],
        },
    )
    first, second = load_prompts(path).records
    assert (first.id, first.split, first.text, first.messages) == ("b", "fresh", "def f", None)
    assert first.tags == {"category": "write", "level": "3", "hard": "true"}
    assert (second.id, second.split, second.prompt_ids) == ("a", "all", (1, 2))
    assert [m.role for m in second.messages] == ["system", "user"]


def test_spec_bench_turns_become_a_conversation(tmp_path):
    path = write(
        tmp_path / "q.jsonl", {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": ["r"]}
    )
    (record,) = load_prompts(path).records
    assert (record.id, record.follow_ups, record.tags) == ("81", ("two",), {"category": "writing"})
    assert [(m.role, m.content) for m in record.history(["answer"])] == [
        ("user", "one"),
        ("assistant", "answer"),
        ("user", "two"),
    ]
    assert (record.turn_id(1), record.turn_id(2)) == ("81", "81@2")


def test_sharegpt_array_keeps_system_and_human_turns(tmp_path):
    value = [
        {
            "id": "x",
            "conversations": [
                {"from": "system", "value": "be brief"},
                {"from": "human", "value": "one"},
                {"from": "gpt", "value": "old answer"},
                {"from": "human", "value": "two"},
            ],
        }
    ]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(value, indent=1))
    (record,) = load_prompts(path).records
    assert [(m.role, m.content) for m in record.messages] == [("system", "be brief"), ("user", "one")]
    assert record.follow_ups == ("two",)


def test_plain_text_is_one_user_message_a_line(tmp_path):
    path = write(tmp_path / "p.txt", "first", "", "  second")
    records = load_prompts(path).records
    assert [(r.id, r.messages[0].content) for r in records] == [("line-00001", "first"), ("line-00003", "  second")]


def test_every_malformed_line_is_named_with_file_and_line(tmp_path):
    path = write(
        tmp_path / "bad.jsonl",
        {"id": "ok", "text": "x"},
        '{"id": "torn", "text": ',
        ["not", "an", "object"],
        {"id": "none"},
        {"id": "ok", "text": "y"},
        {"id": "both", "text": "y", "messages": []},
        {"id": "role", "messages": [{"role": "robot", "content": "x"}]},
        {"id": "type", "messages": [{"role": "user", "content": 5}]},
        {"id": "ids", "text": "x", "prompt_ids": [1, -2]},
    )
    with pytest.raises(PromptFileError) as caught:
        load_prompts(path)
    lines = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4", "5", "6", "7", "8", "9"]
    assert all(line.startswith(f"{path}:") for line in lines)
    assert "not JSON" in lines[0]
    assert "already used at line 1" in lines[3]


@pytest.mark.parametrize(
    "record",
    [
        {"id": "a", "text": ""},
        {"id": "a", "messages": []},
        {"id": "a", "messages": [{"role": "user", "content": "  "}]},
        {"id": "a", "turns": []},
        {"id": "a", "turns": ["x", ""]},
        {"id": "a", "conversations": [{"from": "gpt", "value": "x"}]},
    ],
)
def test_an_empty_prompt_is_refused_by_its_own_code(tmp_path, record):
    with pytest.raises(PromptFileError) as caught:
        load_prompts(write(tmp_path / "p.jsonl", record))
    assert caught.value.code is ErrorCode.EMPTY_PROMPT
    assert "p.jsonl:1: the prompt is empty" in caught.value.message


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(PromptFileError, match="holds no prompts"):
        load_prompts(path)


def test_a_broken_array_names_the_line_of_the_break(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('[\n{"id": 1, "text": "x"},\n{"id": 2, "text": }\n]')
    with pytest.raises(PromptFileError, match=r"s\.json:3: not JSON"):
        load_prompts(path)


def test_missing_file_and_bytes_that_are_not_text_are_one_line(tmp_path):
    with pytest.raises(PromptFileError, match="no such file"):
        load_prompts(tmp_path / "none.jsonl")
    path = tmp_path / "b.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x"}\n\xff\xfe\n')
    with pytest.raises(PromptFileError, match=r"b\.jsonl:2: not UTF-8"):
        load_prompts(path)


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "one\u2028two"}\n', encoding="utf-8")
    assert load_prompts(path).records[0].text == "one\u2028two"


def test_the_bundled_set_covers_several_categories_and_languages_and_keeps_its_ids():
    records = load_prompts(find_prompts("bundled:mixed")).records
    assert len(records) >= 60
    assert len({record.tags["category"] for record in records}) >= 5
    assert {record.tags["language"] for record in records} >= {"en", "de", "fr", "es", "zh"}
    assert all(record.id.startswith(f"{record.tags['category']}-{record.tags['language']}-") for record in records)
    with pytest.raises(PromptFileError, match="bundled are: bundled:coding, bundled:mixed"):
        find_prompts("bundled:none")


def test_the_bundled_coding_set_has_ten_prompts():
    records = load_prompts(find_prompts("bundled:coding")).records
    assert [record.id for record in records] == [f"coding-{number}" for number in range(1, 11)]
    assert find_prompts("some/file.txt") == Path("some/file.txt")
