"""Files of tensors written without torch, read by torch."""

import io

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauscope_client.extract.torch_file import write_torch_file

torch = pytest.importorskip("torch")

DTYPES = {np.int64: torch.int64, np.float32: torch.float32, ml_dtypes.bfloat16: torch.bfloat16}

arrays = st.dictionaries(
    st.text("abc_", min_size=1, max_size=8),
    st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def written(content):
    file = io.BytesIO()
    write_torch_file(file, content)
    return file.getvalue()


@given(arrays, st.integers(0, 2**32 - 1))
def test_torch_loads_the_same_values_without_unpickling_objects(kinds, seed):
    rng = np.random.default_rng(seed)
    content = {name: rng.integers(-99, 99, shape).astype(dtype) for name, (dtype, shape) in kinds.items()}
    loaded = torch.load(io.BytesIO(written(content)), weights_only=True)
    assert list(loaded) == list(content)
    for name, array in content.items():
        assert loaded[name].dtype == DTYPES[kinds[name][0]] and loaded[name].is_contiguous()
        assert loaded[name].float().tolist() == array.astype(np.float32).tolist()


def test_a_mapped_file_gives_aligned_tensors(tmp_path):
    path = tmp_path / "x.ckpt"
    path.write_bytes(written({"a": np.arange(3, dtype=np.int64), "b": np.ones((2, 5), ml_dtypes.bfloat16)}))
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert [tensor.data_ptr() % 64 for tensor in loaded.values()] == [0, 0]


def test_views_are_written_as_they_look():
    view = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    loaded = torch.load(io.BytesIO(written({"view": view})), weights_only=True)["view"]
    assert loaded.tolist() == view.tolist()


def test_equal_tensors_give_equal_files_and_other_types_are_refused():
    content = {"a": np.arange(3, dtype=np.int64)}
    assert written(content) == written(content)
    with pytest.raises(KeyError):
        written({"a": np.arange(3, dtype=np.int16)})
