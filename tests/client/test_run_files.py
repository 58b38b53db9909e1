"""Files of a run folder: whole or absent, lines complete or cut, names that never meet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauscope_client.references import Reference, ids_sha256
from tauscope_client.references.source import Turn
from tauscope_client.references.stored import StoredSource, read_references
from tauscope_client.runs.files import JsonLines, safe_name, write_atomically, write_json
from tauscope_client.runs.lock import FolderLock
from tauscope_client.runs.manifest import differences
from tauscope_wire.errors import MismatchError, RequestError


@given(st.lists(st.text(min_size=1, max_size=400), min_size=2, max_size=30, unique=True))
def test_safe_names_are_file_names_and_differ_for_different_ids(ids):
    names = [safe_name(one) for one in ids]
    assert len(set(names)) == len(ids)
    for name in names:
        assert name == Path(name).name and name not in {".", ".."} and not name.startswith(".")
        assert len(name.encode()) < 200


@pytest.mark.parametrize("torn", [0, 1, 5, 70_000])
def test_lines_survive_a_kill_and_a_torn_end_is_cut_whatever_its_length(tmp_path, torn):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n' + b"x" * torn)
    lines = JsonLines(path)
    lines.append('{"c": 3}')
    lines.close()
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"c": 3}\n'
    assert [text for _, text in lines.lines()] == ['{"a": 1}', '{"b": 2}', '{"c": 3}']


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"old": True})

    def broken(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, broken)
    assert json.loads(path.read_text()) == {"old": True}
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"nan": float("nan")})


def test_the_lock_names_its_holder_and_goes_with_the_process(tmp_path):
    script = (
        "import sys, pathlib\nfrom tauscope_client.runs.lock import FolderLock\n"
        "with FolderLock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MismatchError, match=f"another run is writing there \\(process {holder.pid}\\)"):
            FolderLock(tmp_path).__enter__()
        holder.kill()
        holder.wait()
    with FolderLock(tmp_path):
        pass


def test_differences_name_the_leaf_in_either_direction():
    before = {"a": {"x": 1, "y": [1, 2]}, "b": None}
    after = {"a": {"x": 2, "y": (1, 2)}, "c": 3}
    assert differences(before, after) == [("a.x", 1, 2), ("c", None, 3)]


def reference(**changes):
    ids = [5, 6, 7]
    fields = {
        "id": "a", "conversation": "a", "split": "all", "prompt_ids": ids, "prompt_sha256": ids_sha256(ids),
        "response_ids": list(range(10, 20)), "tail_ids": [1, 2], "finish_reason": "length", "stop_token_ids": [0],
        "max_new_tokens": 10, "source": "target",
    }  # fmt: skip
    return Reference(**{**fields, **changes})


def frozen(tmp_path, *references):
    path = tmp_path / "refs.jsonl"
    path.write_text("".join(one.model_dump_json(by_alias=True) + "\n" for one in references))
    return path


def turn(**changes):
    return Turn(**{"id": "a", "prompt_ids": [5, 6, 7], "max_new_tokens": 10, "stop_token_ids": [0], **changes})


def test_a_stored_answer_can_be_cut_shorter_and_its_rest_becomes_the_tail(tmp_path):
    completion = StoredSource(frozen(tmp_path, reference())).complete(turn(max_new_tokens=4, tail_tokens=7))
    assert (completion.response_ids, completion.finish_reason) == ([10, 11, 12, 13], "length")
    assert completion.tail_ids == [14, 15, 16, 17, 18, 19, 1]


def test_a_stored_answer_that_is_too_short_missing_or_for_another_prompt_is_refused(tmp_path):
    source = StoredSource(frozen(tmp_path, reference()))
    with pytest.raises(RequestError, match="was cut at 10 tokens; --max-new-tokens 11 needs a longer one"):
        source.complete(turn(max_new_tokens=11))
    with pytest.raises(RequestError, match="no reference for 'b'"):
        source.complete(turn(id="b"))
    with pytest.raises(MismatchError, match="answers 3 other prompt ids than the 2 rendered now"):
        source.complete(turn(prompt_ids=[5, 6]))
    with pytest.raises(RequestError, match="'a' comes twice"):
        StoredSource(frozen(tmp_path, reference(), reference()))


def test_an_edited_or_malformed_reference_line_is_named(tmp_path):
    edited = frozen(tmp_path, reference(), reference(id="b", prompt_ids=[5, 6, 8]))
    with pytest.raises(RequestError, match=r"refs\.jsonl:2: prompt_sha256 is not the hash"):
        read_references(edited)
    edited.write_text(edited.read_text().splitlines()[0] + "\n{}\n")
    with pytest.raises(RequestError, match=r"refs\.jsonl:2: not a reference"):
        read_references(edited)
