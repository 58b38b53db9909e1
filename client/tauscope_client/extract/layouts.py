"""What the files of an extraction look like: ours, and those that the training programs read.

    plain             data/00000/00000000.safetensors: token_ids [T], loss_mask [T], hidden_states [T, P, H]
    speculators       hidden_states/hs_0.safetensors: the same; the last plane is the last layer before the final norm
    specforge         data/00000/data_00000000.ckpt: input_ids [T], loss_mask [T], aux_hidden_state [1, T, P*H],
                      hidden_state [1, T, H]
    specforge-dflash  the same file: input_ids [T], loss_mask [T], hidden_states [1, T, P*H]
    specforge-dspark  as specforge-dflash, and target_last_hidden_states [1, T, H]

Sources: speculators 0.9.0 (`train/data.py`: all planes but the last are the drafter's input, the verifier's own norm is
applied to the last one), SpecForge 0.2.0 (`algorithms/*/providers.py`: capture layouts; its last states are what SGLang
gives to the head, after the final norm). Ids are int64, loss masks int64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from tauscope_client.extract.sample import Sample
from tauscope_client.extract.torch_file import write_torch_file
from tauscope_wire.layers import FINAL_NORM, Plane

__all__ = ["LAYOUTS", "Layout", "estimated_bytes"]

ID_BYTES = 16
"""Of each token: an id and a mask value, int64."""
FRAME_BYTES = 4096
"""More than any header here takes."""
ROWS_PER_FOLDER = 5000
"""So that no folder holds millions of files. Names are padded: SpecForge reads files in the order of their names."""

States = npt.NDArray[Any]


class Layout(Protocol):
    """How one sample becomes a file."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def is_for_training(self) -> bool:
        """Whether the layout is a training program's, which fixes the last plane."""
        ...

    @property
    def min_span(self) -> int:
        """A sample is of use when so many tokens in a row count for the loss."""
        ...

    def planes(self, taps: Sequence[Plane], num_layers: int) -> tuple[Plane, ...]:
        """Planes of a file, in its order, for those that were asked for; one may come twice."""
        ...

    def path(self, row: int) -> PurePosixPath:
        """Where the file of a sample is, below the output folder."""
        ...

    def write(self, file: BinaryIO, sample: Sample, states: Sequence[States], facts: Mapping[str, str]) -> None:
        """Write a file.

        Args:
            file: empty.
            sample: of T tokens.
            states: [T, H] each, in the order of `planes`.
            facts: go into the file where it has a place for them.
        """
        ...


def estimated_bytes(num_tokens: int, *, num_planes: int, plane_bytes: int) -> int:
    """Bytes of a file, a little more than the truth; `plane_bytes` are those of one token in one plane."""
    return num_tokens * (ID_BYTES + num_planes * plane_bytes) + FRAME_BYTES


@dataclass(frozen=True)
class SafetensorsLayout:
    """`plain` and `speculators`."""

    name: Literal["plain", "speculators"]

    @property
    def is_for_training(self) -> bool:
        """Ours is for anything."""
        return self.name == "speculators"

    @property
    def min_span(self) -> int:
        """See `Layout`."""
        return int(self.is_for_training)

    def planes(self, taps: Sequence[Plane], num_layers: int) -> tuple[Plane, ...]:
        """See `Layout`."""
        return (*taps, num_layers - 1) if self.is_for_training else tuple(taps)

    def path(self, row: int) -> PurePosixPath:
        """See `Layout`."""
        if self.name == "speculators":  # its reader knows one folder
            return PurePosixPath("hidden_states", f"hs_{row}.safetensors")
        return _grouped(row, f"{row:08d}.safetensors")

    def write(self, file: BinaryIO, sample: Sample, states: Sequence[States], facts: Mapping[str, str]) -> None:
        """See `Layout`."""
        tensors = {
            "token_ids": sample.ids(),
            "loss_mask": sample.loss_mask(),
            "hidden_states": np.stack(states, axis=1),
        }
        file.write(save(tensors, metadata=dict(facts)))


@dataclass(frozen=True)
class TorchLayout:
    """SpecForge's files: the names of its tensors; `final_name` is None where an algorithm needs no last states."""

    name: str
    taps_name: str
    final_name: str | None
    min_span: int

    is_for_training = True

    def planes(self, taps: Sequence[Plane], num_layers: int) -> tuple[Plane, ...]:
        """See `Layout`."""
        del num_layers
        return tuple(taps) if self.final_name is None else (*taps, FINAL_NORM)

    def path(self, row: int) -> PurePosixPath:
        """See `Layout`."""
        return _grouped(row, f"data_{row:08d}.ckpt")

    def write(self, file: BinaryIO, sample: Sample, states: Sequence[States], facts: Mapping[str, str]) -> None:
        """See `Layout`; the file has no place for facts."""
        del facts
        taps = states if self.final_name is None else states[:-1]
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": sample.ids(),
            "loss_mask": sample.loss_mask(),
            self.taps_name: np.concatenate(taps, axis=1)[None],
        }
        if self.final_name is not None:
            arrays[self.final_name] = states[-1][None]
        write_torch_file(file, arrays)


def _grouped(row: int, name: str) -> PurePosixPath:
    return PurePosixPath("data", f"{row // ROWS_PER_FOLDER:05d}", name)


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        SafetensorsLayout("plain"),
        SafetensorsLayout("speculators"),
        TorchLayout("specforge", "aux_hidden_state", "hidden_state", 1),
        TorchLayout("specforge-dflash", "hidden_states", None, 2),
        TorchLayout("specforge-dspark", "hidden_states", "target_last_hidden_states", 2),
    )
}
"""By the name of the command line."""
