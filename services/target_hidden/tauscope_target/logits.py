"""Summary of the model's own distribution, in blocks: rows x vocabulary never exists at once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tauscope_target.jobs import LogitsSpec
from tauscope_target.memory import BLOCK_ELEMENTS, BLOCK_VOCAB
from tauscope_target.ranking import RowBlock, start_ranking
from tauscope_wire.tensors import LogitsSummary


class HeadBlocks(Protocol):
    """The output projection, in blocks of the vocabulary."""

    vocab_size: int
    block_vocab: int
    block_elements: int

    def blocks(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        """(first id, weight [block, hidden], bias [block] or None), in order of ids, on the compute device."""
        ...


class ResidentHead:
    """Blocks of a head that lies on the compute device.

    Args:
        head: the model's own output projection.
        device: where logits are computed, if the head lies elsewhere (tied to an embedding on another device): it is
            copied there.
    """

    def __init__(self, head: Any, *, device: torch.device | None = None) -> None:
        self._weight: torch.Tensor = head.weight if device is None else head.weight.to(device)
        bias: torch.Tensor | None = getattr(head, "bias", None)
        self._bias = bias if bias is None or device is None else bias.to(device)
        self.vocab_size = int(self._weight.shape[0])
        self.block_vocab = min(BLOCK_VOCAB["resident"], self.vocab_size)
        self.block_elements = BLOCK_ELEMENTS["resident"]

    def blocks(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        """Views of the weight."""
        for start in range(0, self.vocab_size, self.block_vocab):
            stop = min(start + self.block_vocab, self.vocab_size)
            yield start, self._weight[start:stop], None if self._bias is None else self._bias[start:stop]


@dataclass(eq=False)
class SummaryRows:
    """The summary of one job while its rows are still coming.

    `token_ids` is the whole sequence, `start` the position of row 0; `next_logprobs` has a row for every position that
    has a next token.
    """

    spec: LogitsSpec
    token_ids: npt.NDArray[np.int32]
    start: int
    num_rows: int
    argmax_ids: npt.NDArray[np.int32] = field(init=False)
    top_ids: npt.NDArray[np.int32] = field(init=False)
    top_logprobs: npt.NDArray[np.float32] = field(init=False)
    next_logprobs: npt.NDArray[np.float32] | None = field(init=False)
    is_finite: bool = True

    def __post_init__(self) -> None:
        self.argmax_ids = np.empty(self.num_rows, np.int32)
        self.top_ids = np.empty((self.num_rows, self.spec.top_k), np.int32)
        self.top_logprobs = np.empty((self.num_rows, self.spec.top_k), np.float32)
        num_next = min(self.num_rows, len(self.token_ids) - 1 - self.start)
        self.next_logprobs = np.empty(num_next, np.float32) if self.spec.next_token else None

    def put(self, row: int, block: RowBlock) -> None:
        """Store the rows from `row` on; `block` lies in host memory and may hold more than `top_k` ids."""
        stop = row + len(block.ids)
        ids, logprobs = block.ids.numpy(), block.logprobs.numpy()
        self.is_finite = self.is_finite and bool(np.isfinite(logprobs).all())
        self.argmax_ids[row:stop] = ids[:, 0]
        self.top_ids[row:stop] = ids[:, : self.spec.top_k]
        self.top_logprobs[row:stop] = logprobs[:, : self.spec.top_k]
        if self.next_logprobs is not None:
            count = max(0, min(stop, len(self.next_logprobs)) - row)
            self.next_logprobs[row : row + count] = block.next_logprobs[:count].numpy()

    def next_ids(self, row: int, count: int) -> npt.NDArray[np.int32]:
        """Next token of each row; 0 stands where there is none."""
        ids = np.zeros(count, np.int32)
        following = self.token_ids[self.start + row + 1 : self.start + row + 1 + count]
        ids[: len(following)] = following
        return ids

    def summary(self) -> LogitsSummary:
        """The finished summary."""
        return LogitsSummary(
            argmax_ids=self.argmax_ids,
            top_ids=self.top_ids,
            top_logprobs=self.top_logprobs,
            next_logprobs=self.next_logprobs,
        )


class WantedRows(NamedTuple):
    """Rows of one request that go through the head.

    Attributes:
        summary: where their summary goes.
        row: which of the request's rows is the first one.
        hidden: [r, hidden], of the last layer.
    """

    summary: SummaryRows
    row: int
    hidden: torch.Tensor


def summarise_wanted(
    wanted: Iterable[WantedRows],
    head: HeadBlocks,
    *,
    norm: Callable[[torch.Tensor], torch.Tensor],
    scale: Callable[[torch.Tensor], torch.Tensor],
    check: Callable[[], None],
) -> None:
    """Summarise rows of many requests, as many at once as the head takes: a streamed head travels once for all of them.

    Args:
        wanted: the rows.
        head: the output projection.
        norm: the final norm.
        scale: what the architecture does to the head's output.
        check: called before each journey; raises when nobody waits any more.
    """
    for block in _blocks(wanted, rows_at_once(head)):
        check()
        found = summarise(
            torch.cat([norm(part.hidden) for part in block]),
            np.concatenate([part.summary.next_ids(part.row, len(part.hidden)) for part in block]),
            head,
            top_k=max(part.summary.spec.top_k for part in block),
            scale=scale,
        ).cpu()
        start = 0
        for part in block:
            part.summary.put(part.row, found.part(start, len(part.hidden)))
            start += len(part.hidden)


def _blocks(wanted: Iterable[WantedRows], most: int) -> Iterator[list[WantedRows]]:
    """Cut and join to blocks of `most` rows; the last one may have fewer."""
    block: list[WantedRows] = []
    room = most
    for summary, row, hidden in wanted:
        taken = 0
        while taken < len(hidden):
            part = hidden[taken : taken + room]
            block.append(WantedRows(summary, row + taken, part))
            taken += len(part)
            room -= len(part)
            if not room:
                yield block
                block, room = [], most
    if block:
        yield block


def rows_at_once(head: HeadBlocks) -> int:
    """Most rows whose logits over a block of the vocabulary fit the head's budget."""
    return max(1, head.block_elements // head.block_vocab)


def summarise(
    normed: torch.Tensor,
    next_ids: npt.NDArray[np.int32],
    head: HeadBlocks,
    *,
    top_k: int,
    scale: Callable[[torch.Tensor], torch.Tensor],
) -> RowBlock:
    """Summarise the distribution of some rows.

    Args:
        normed: [r, hidden], the last layer after the final norm.
        next_ids: [r], ids whose log-prob is wanted.
        head: the output projection.
        top_k: best ids per row; at least one is always computed.
        scale: what the architecture does to the head's output.
    """
    following = torch.from_numpy(next_ids).to(normed.device, torch.int64)
    ranking = start_ranking(following, max(1, min(top_k, head.vocab_size)), normed.dtype)
    for start, weight, bias in head.blocks():
        ranking.add(scale(torch.nn.functional.linear(normed, weight, bias)), start)
    return ranking.rows()
