"""Gets hidden states to the drafter: from the one target service it is configured with, or out of the request.

States of a target on the same machine are mapped from its file where it names one, else they come over HTTP.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import numpy as np

from tauscope_drafter.contract import ProbeText, StatesArray
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
from tauscope_drafter.mapped_states import MappedReader, TargetStates, is_on_this_machine
from tauscope_drafter.sequence import check_sequence
from tauscope_wire.connection import Connection
from tauscope_wire.dtypes import NUMPY_DTYPES
from tauscope_wire.errors import (
    AuthenticationError,
    ErrorCode,
    PermissionDeniedError,
    RequestError,
    TauscopeError,
    UnavailableError,
)
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.layers import FINAL_NORM, Plane
from tauscope_wire.messages import (
    DrafterCard,
    GenerateAnswer,
    GenerateRequest,
    HiddenInline,
    HiddenRequest,
    ModelInfo,
    TargetInfo,
)
from tauscope_wire.reader import read_hidden

PROBE_PROMPTS = (
    "def quicksort(values):\n",
    "The three primary colours are red, yellow and blue. ",
    "Question: A train travels 120 km in two hours. What is its average speed?\nAnswer:",
)
"""Openings that any language model continues predictably for a while."""
PROBE_TOKENS = 64


class StatesSource:
    """Reads handles of one target service. Safe to use from several threads.

    Args:
        connection: to the target service; None when none was configured.
        mapping: map files of a target on this machine; False reads everything over HTTP.
    """

    def __init__(self, connection: Connection | None, *, mapping: bool = True) -> None:
        self._connection = connection
        is_near = mapping and connection is not None and is_on_this_machine(connection.base_url)
        self._mapped = MappedReader() if is_near else None
        self._lock = threading.Lock()
        self._reads: dict[Literal["mapped", "http"], int] = {"mapped": 0, "http": 0}

    def num_reads(self, way: Literal["mapped", "http"]) -> int:
        """Handles read that way so far."""
        return self._reads[way]

    @property
    def url(self) -> str | None:
        """Address of the target service."""
        return None if self._connection is None else self._connection.base_url

    def target_model(self, own: ModelInfo | None) -> ModelInfo | None:
        """The model that the target service serves, if it is the one whose weights are shared here.

        Args:
            own: the model of the folder, None without one.

        Returns:
            What the target service says, or `own` when that is another model (callers compare and refuse), or None
            when the service does not answer.
        """
        if self._connection is None:
            return own
        try:
            served = self._connection.get_json("/info", TargetInfo).model
        except TauscopeError:
            return None
        return served if own is None or own.config_sha256 == served.config_sha256 else own

    def probe_texts(self, taps: Sequence[int]) -> list[ProbeText]:
        """Greedy texts of the target with states of `taps`, for measuring a layout; blocks.

        Raises:
            TauscopeError: the target service does not answer, or refuses.
        """
        if self._connection is None:
            raise UnavailableError("no target service is configured; start this service with --target-url")
        texts = []
        for prompt in PROBE_PROMPTS:
            asked = GenerateRequest(text=prompt, max_new_tokens=PROBE_TOKENS)
            text = self._connection.post_json("/generate", asked, GenerateAnswer)
            ids = [*text.prompt_token_ids, *text.token_ids]
            hidden = HiddenRequest(token_ids=ids, layers=list(taps))
            expect = HiddenExpectation.of_request(hidden)
            answer = self._connection.post_tensors("/hidden_states", hidden, partial(read_hidden, expect=expect))
            assert answer.states is not None
            texts.append(
                ProbeText(
                    token_ids=np.asarray(ids, dtype=np.int64),
                    start=len(text.prompt_token_ids),
                    states=StatesArray(states=answer.states, numerics=answer.numerics),
                )
            )
        return texts

    def fetch(
        self,
        handle: str,
        card: DrafterCard,
        token_ids: Sequence[int],
        num_rows: int,
        *,
        key: str | None = None,
        final_norm: bool = False,
        request_id: str | None = None,
    ) -> StatesArray:
        """The planes of a drafter for positions 0..num_rows-1; blocks, so call it off the event loop.

        Args:
            handle: as the target service gave it.
            card: of the drafter.
            token_ids: of the request.
            num_rows: positions that are needed.
            key: on whose behalf: the target decides by this key whether the handle may be read; None uses the
                connection's own.
            final_norm: also the plane of that name, last.
            request_id: of the caller's request.

        Raises:
            AuthenticationError, PermissionDeniedError: the target service does not take the key.
            GoneError: the handle is gone.
            MismatchError: the target does not fit the drafter.
            RequestError: the handle belongs to another sequence, or does not cover the positions.
            UnavailableError: no target service was configured.
        """
        if self._connection is None:
            raise UnavailableError("no target service is configured; start this service with --target-url")
        planes: tuple[Plane, ...] = (*card.taps, FINAL_NORM) if final_norm else tuple(card.taps)
        way: Literal["mapped", "http"] = "mapped"
        with self._on_behalf(key) as connection:
            found = None
            if self._mapped is not None:
                found = self._mapped.read(connection, handle, planes, num_rows, request_id=request_id)
            if found is None:
                way = "http"
                found = _over_http(connection, handle, planes, num_rows, request_id=request_id)
        check_served(card, found.model)
        check_sequence(found.token_ids, token_ids, num_rows)
        with self._lock:
            self._reads[way] += 1
        return StatesArray(states=found.states, token_ids=found.token_ids, numerics=found.numerics, way=way)

    def compare(self, card: DrafterCard, *, key: str | None = None, request_id: str | None = None) -> list[str]:
        """Compare a drafter that reads no states, and so never meets those of the target, with the target service.

        Args:
            card: of the drafter.
            key: on whose behalf.
            request_id: of the caller's request.

        Returns:
            A warning where nothing could be compared; empty also without a target service, when there is none to fit.

        Raises:
            MismatchError: the target does not fit the drafter.
        """
        if self._connection is None:
            return []
        try:
            with self._on_behalf(key) as connection:
                served = connection.get_json("/info", TargetInfo, request_id=request_id).model
        except TauscopeError as error:
            return [
                f"drafter {card.name} was not compared with the target, which did not say what it is: {error.message}"
            ]
        check_served(card, served)
        return []

    @contextmanager
    def _on_behalf(self, key: str | None) -> Iterator[Connection]:
        """A connection with the caller's key; that of the service where no keys are in use."""
        assert self._connection is not None
        if key is None:
            yield self._connection
            return
        with Connection(self._connection.base_url, key=key, tracing=self._connection.tracing) as own:
            try:
                yield own
            except (AuthenticationError, PermissionDeniedError) as error:
                raise type(error)(
                    f"the target service refuses the key of this request: {error.message} (both services need the "
                    "same keys, and reading a handle the role 'read')",
                    error.code,
                ) from None


def _over_http(
    connection: Connection, handle: str, planes: tuple[Plane, ...], num_rows: int, *, request_id: str | None
) -> TargetStates:
    params = {"planes": ",".join(map(str, planes)), "start": 0, "stop": num_rows}
    expect = HiddenExpectation(planes=planes, positions=(0, num_rows), data=True)
    read = partial(read_hidden, expect=expect)
    answer = connection.get_tensors(f"/hidden_states/{handle}", params, read, request_id=request_id)
    assert answer.states is not None
    return TargetStates(states=answer.states, token_ids=answer.token_ids, model=answer.model, numerics=answer.numerics)


def check_served(card: DrafterCard, model: ModelInfo) -> None:
    """Refuse states of a target that the drafter was not made for.

    Raises:
        MismatchError: hidden size, layers or vocabulary differ; `details` holds both sides.
    """
    check_fit(
        DrafterSide(card.name, card.taps, card.target_hidden_size, card.vocab_size),
        TargetSide(model.id, model.num_layers, model.hidden_size, model.vocab_size),
    )


def inline_states(inline: HiddenInline, card: DrafterCard, num_rows: int) -> StatesArray:
    """States out of a request: row-major [P, T, Ht], little-endian, planes as `card.taps` lists them.

    Raises:
        RequestError: the bytes are not P x T x Ht numbers, or T is too short for the last anchor.
    """
    dtype = NUMPY_DTYPES[inline.dtype]
    row_bytes = len(card.taps) * card.target_hidden_size * dtype.itemsize
    if not row_bytes or not inline.inline or len(inline.inline) % row_bytes:
        raise RequestError(
            f"hidden.inline has {len(inline.inline)} bytes, no multiple of {row_bytes} ({len(card.taps)} planes x "
            f"{card.target_hidden_size} x {dtype.itemsize} bytes); planes are {card.taps}"
        )
    length = len(inline.inline) // row_bytes
    if length < num_rows:
        raise RequestError(
            f"hidden.inline covers {length} positions, {num_rows} are needed for the last anchor",
            ErrorCode.POSITION_OUT_OF_RANGE,
        )
    states = np.frombuffer(inline.inline, dtype).reshape(len(card.taps), length, card.target_hidden_size)
    return StatesArray(states=states)
