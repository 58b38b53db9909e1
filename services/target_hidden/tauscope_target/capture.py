"""Takes the wanted rows of the wanted layers out of a running pass, and checks them on the device.

Each request has its own output array, and every copy into it is addressed by (layer, batch row, positions): there is no
shared buffer in which rows of two requests could be mixed up. Padding lies behind a request's last row and is never
copied. Every row is checked where it was computed: not finite, or all zero, is an error, not an answer.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.jobs import HiddenJob
from tauscope_target.logits import HeadBlocks, SummaryRows, WantedRows, summarise_wanted
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, InternalError
from tauscope_wire.layers import EMBEDDING

TORCH_WIRE: dict[WireDtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_NOT_FINITE, _ZERO = 0, 1


class Capture:
    """What one pass must deliver.

    Args:
        jobs: the requests, in the order of the batch rows.
        anatomy: the model's parts.
        head: the output projection, or None when it is not loaded.
        device: where the pass begins; with a GPU, answers are written to pinned memory.
    """

    def __init__(
        self, jobs: Sequence[HiddenJob], *, anatomy: Anatomy, head: HeadBlocks | None, device: torch.device
    ) -> None:
        self._jobs = jobs
        self._anatomy = anatomy
        self._head = head
        self._last = len(anatomy.layer_types) - 1
        hidden = int(anatomy.config.hidden_size)
        pinned = device.type == "cuda"
        self._outputs = [
            torch.empty((len(j.planes), j.num_positions, hidden), dtype=TORCH_WIRE[j.dtype], pin_memory=pinned)
            for j in jobs
        ]
        self._targets: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, job in enumerate(jobs):
            for plane, layer in enumerate(job.layers):
                self._targets[layer].append((row, plane))
        self._summaries = [
            SummaryRows(j.logits, j.token_ids, j.start, j.num_positions) if j.logits is not None else None for j in jobs
        ]
        self._flags: dict[torch.device, torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def deepest(self) -> int:
        """Last layer that must run; -1 when the embedding output is all that is wanted."""
        needs_last = any(job.final_norm or job.logits is not None for job in self._jobs)
        return self._last if needs_last else max(self._targets, default=EMBEDDING)

    def take(self, layer: int, start: int, hidden: torch.Tensor, *, first_row: int = 0) -> None:
        """Copy what is wanted of positions start.. of some rows of one layer.

        Args:
            layer: canonical id.
            start: position of `hidden`'s first column.
            hidden: [rows, positions, hidden]; must not change afterwards.
            first_row: of the batch.
        """
        for row, plane in self._targets.get(layer, ()):
            span = self._span(row, start, hidden, first_row)
            if span is not None:
                self._store(row, plane, span[0], span[1], may_be_zero=layer < 0)
        if layer == self._last:
            for row, job in enumerate(self._jobs):
                span = self._span(row, start, hidden, first_row) if job.final_norm else None
                if span is not None:
                    normed = self._anatomy.final_norm(span[1])
                    self._store(row, len(job.layers), span[0], normed, may_be_zero=False)

    def summarise(
        self, layer: int, start: int, hidden: torch.Tensor, *, first_row: int = 0, check: Callable[[], None]
    ) -> None:
        """Compute the logits that are wanted of rows of the last layer; of other layers there are none.

        Arguments as for `take`, and `check`, which raises when nobody waits any more. The more rows at once, the fewer
        the journeys of a streamed head.
        """
        if layer != self._last:
            return
        wanted = [
            WantedRows(summary, span[0] - self._jobs[row].start, span[1])
            for row, summary in enumerate(self._summaries)
            if summary is not None and (span := self._span(row, start, hidden, first_row)) is not None
        ]
        if wanted:
            assert self._head is not None, "a job with logits needs a head; the engine checks that before the pass"
            norm, scale = self._anatomy.final_norm, self._anatomy.scale_logits
            summarise_wanted(wanted, self._head, norm=norm, scale=scale, check=check)

    def results(self) -> list[tuple[npt.NDArray[Any], SummaryRows | None] | InternalError]:
        """States and summary per job, or why they cannot be given; waits for copies under way."""
        for stream in self._streams.values():
            stream.synchronize()
        found = torch.zeros((len(self._jobs), 2), dtype=torch.bool)
        for on_device in self._flags.values():
            found |= on_device.cpu()
        flags = found.tolist()
        results: list[tuple[npt.NDArray[Any], SummaryRows | None] | InternalError] = []
        for output, summary, (not_finite, zero) in zip(self._outputs, self._summaries, flags, strict=True):
            if not_finite or (summary is not None and not summary.is_finite):
                results.append(
                    InternalError(
                        "the model gave values that are not finite; nothing is delivered; check the checkpoint",
                        ErrorCode.NON_FINITE_STATES,
                    )
                )
            elif zero:
                results.append(
                    InternalError(
                        "the model gave a row of zeros; nothing is delivered. A kernel or the checkpoint is broken",
                        ErrorCode.ZERO_STATES,
                    )
                )
            else:
                results.append((as_numpy(output), summary))
        return results

    def _span(self, row: int, start: int, hidden: torch.Tensor, first_row: int) -> tuple[int, torch.Tensor] | None:
        """First wanted position of a row in `hidden`, and the states from there on that are wanted."""
        job = self._jobs[row]
        low, high = max(job.start, start), min(job.stop, start + hidden.shape[1])
        if low >= high or not first_row <= row < first_row + len(hidden):
            return None
        return low, hidden[row - first_row, low - start : high - start]

    def _store(self, row: int, plane: int, position: int, rows: torch.Tensor, *, may_be_zero: bool) -> None:
        """Cast, check and copy rows [r, hidden] that start at `position`."""
        output = self._outputs[row]
        low = position - self._jobs[row].start
        place = output[plane, low : low + len(rows)]
        if rows.device.type != "cuda":
            place.copy_(rows)
            cast = place
        else:
            cast = rows.to(output.dtype, copy=may_be_zero)  # the embedding output is overwritten in place later
            self._copy_out(place, cast)
        flags = self._flags_on(cast.device)
        largest = torch.linalg.vector_norm(cast, ord=float("inf"), dim=-1)
        flags[row, _NOT_FINITE] |= ~torch.isfinite(largest).all()
        if not may_be_zero:  # an embedding row may be zero: that of a padding token is
            flags[row, _ZERO] |= (largest == 0).any()

    def _copy_out(self, place: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy rows to pinned memory on a stream of their device that does not hold up the layers."""
        stream = self._streams.get(rows.device)
        if stream is None:
            stream = self._streams[rows.device] = torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):
            place.copy_(rows, non_blocking=True)
        rows.record_stream(stream)

    def _flags_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._flags:
            self._flags[device] = torch.zeros((len(self._jobs), 2), dtype=torch.bool, device=device)
        return self._flags[device]


def as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A CPU tensor as numpy without a copy; BF16 becomes ml_dtypes.bfloat16."""
    if tensor.dtype is torch.bfloat16:
        bits: npt.NDArray[Any] = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: npt.NDArray[Any] = tensor.numpy()
    return np.asarray(array)
