"""The files that others read, pinned byte names and shapes; their own readers run in test_readers.py."""

import io

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize

from tauscope_client.commands.extract import LayoutName
from tauscope_client.extract.layouts import LAYOUTS, estimated_bytes
from tauscope_client.extract.sample import Sample

NUM_LAYERS, HIDDEN = 8, 4
SAMPLE = Sample(id="x", row=7, token_ids=(5, 6, 7), spans=((1, 3),))


def plane(value):
    return (np.arange(3 * HIDDEN).reshape(3, HIDDEN) + 100 * value).astype(ml_dtypes.bfloat16)


def load(data):
    kinds = {"I64": np.int64, "BF16": ml_dtypes.bfloat16}
    tensors = deserialize(data)
    return {
        name: np.frombuffer(entry["data"], kinds[entry["dtype"]]).reshape(entry["shape"]) for name, entry in tensors
    }


def written(layout, *taps):
    planes = layout.planes(taps, NUM_LAYERS)
    states = [plane(99 if name == "final_norm" else name) for name in planes]
    file = io.BytesIO()
    layout.write(file, SAMPLE, states, {"id": "x"})
    data = file.getvalue()
    limit = estimated_bytes(3, num_planes=len(planes), plane_bytes=2 * HIDDEN)
    assert limit - 4096 <= len(data) <= limit  # the estimate is never too small, and off by a header at most
    return planes, data


@pytest.mark.parametrize(
    ("name", "planes", "path"),
    [
        ("plain", (1, 5), "data/00001/00007001.safetensors"),
        ("speculators", (1, 5, 7), "hidden_states/hs_7001.safetensors"),
        ("specforge", (1, 5, "final_norm"), "data/00001/data_00007001.ckpt"),
        ("specforge-dflash", (1, 5), "data/00001/data_00007001.ckpt"),
        ("specforge-dspark", (1, 5, "final_norm"), "data/00001/data_00007001.ckpt"),
    ],
)
def test_planes_and_places(name, planes, path):
    assert LAYOUTS[name].planes((1, 5), NUM_LAYERS) == planes
    assert str(LAYOUTS[name].path(7001)) == path


@pytest.mark.parametrize("name", ["plain", "speculators"])
def test_safetensors_hold_tokens_by_planes_by_hidden(name):
    planes, data = written(LAYOUTS[name], 5, 1)
    tensors = load(data)
    assert tensors["token_ids"].tolist() == [5, 6, 7] and tensors["token_ids"].dtype == np.int64
    assert tensors["loss_mask"].tolist() == [0, 1, 1]
    assert tensors["hidden_states"].dtype == ml_dtypes.bfloat16
    for index, plane_name in enumerate(planes):
        assert (tensors["hidden_states"][:, index] == plane(plane_name)).all()


def test_the_last_layer_comes_twice_when_it_is_a_tap_of_the_drafter_too():
    planes, data = written(LAYOUTS["speculators"], 1, 7)
    assert planes == (1, 7, 7) and load(data)["hidden_states"].shape == (3, 3, HIDDEN)


@pytest.mark.parametrize(
    ("name", "taps", "final"),
    [
        ("specforge", "aux_hidden_state", "hidden_state"),
        ("specforge-dflash", "hidden_states", None),
        ("specforge-dspark", "hidden_states", "target_last_hidden_states"),
    ],
)
def test_specforge_finds_taps_side_by_side_and_the_normed_last_states(name, taps, final):
    torch = pytest.importorskip("torch")
    loaded = torch.load(io.BytesIO(written(LAYOUTS[name], 1, 5)[1]), weights_only=True)
    assert set(loaded) == {"input_ids", "loss_mask", taps} | ({final} if final else set())
    assert loaded["input_ids"].tolist() == [5, 6, 7] and loaded["loss_mask"].tolist() == [0, 1, 1]
    assert loaded["input_ids"].dtype == loaded["loss_mask"].dtype == torch.int64
    expected = np.concatenate([plane(1), plane(5)], axis=1).astype(np.float32)
    assert loaded[taps].dtype == torch.bfloat16 and loaded[taps].float().tolist() == [expected.tolist()]
    if final:
        assert loaded[final].float().tolist() == [plane(99).astype(np.float32).tolist()]


def test_the_command_line_knows_every_layout():
    assert [name.value for name in LayoutName] == list(LAYOUTS)
