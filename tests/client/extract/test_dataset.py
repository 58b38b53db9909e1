"""The rows that go with speculators' files."""

import json

import pytest

from tauscope_client.extract.dataset import write_dataset
from tauscope_client.extract.extracting import NO_PYARROW
from tauscope_client.extract.samples import SampleTable

ROWS = [([3, 4, 5, 6, 7], [0, 0, 0, 1, 1]), ([8, 9, 10, 11], [0, 1, 1, 0]), ([5, 6, 7, 8, 9], [0, 0, 1, 1, 1])]


@pytest.fixture
def folder(cli, texts, tmp_path):
    out = tmp_path / "out"
    code, said = cli(texts, "--out", out, "--layers", "1,16", "--layout", "speculators")
    assert code == 0 and (NO_PYARROW in said) != (out / "state.json").exists()
    return out


def test_rows_stand_in_the_order_of_the_files(folder):
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [(row["input_ids"], row["loss_mask"]) for row in rows[:3]] == ROWS
    assert [row["seq_len"] for row in rows] == [5, 4, 5, 30]
    assert {path.name for path in (folder / "hidden_states").iterdir()} == {f"hs_{row}.safetensors" for row in range(4)}


def test_the_arrow_file_holds_the_same_rows_and_says_what_they_are(folder):
    ipc = pytest.importorskip("pyarrow.ipc")
    assert write_dataset(SampleTable(folder / "samples.jsonl"), folder)
    table = ipc.open_stream(folder / "data-00000-of-00001.arrow").read_all()
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert table.to_pylist() == rows
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == json.loads((folder / "dataset_info.json").read_text())["features"]
    state = json.loads((folder / "state.json").read_text())
    assert [one["filename"] for one in state["_data_files"]] == ["data-00000-of-00001.arrow"]
