"""Gets hidden states to the drafter: from the one target service it is configured with, or out of the request."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tauscope_drafter.contract import ProbeText, StatesArray
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
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
    """

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

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
        params = {"planes": ",".join(map(str, planes)), "start": 0, "stop": num_rows}
        expect = HiddenExpectation(planes=planes, positions=(0, num_rows), data=True)
        read = partial(read_hidden, expect=expect)
        if key is None:
            answer = self._connection.get_tensors(f"/hidden_states/{handle}", params, read, request_id=request_id)
        else:
            with Connection(self._connection.base_url, key=key) as own:
                try:
                    answer = own.get_tensors(f"/hidden_states/{handle}", params, read, request_id=request_id)
                except (AuthenticationError, PermissionDeniedError) as error:
                    raise type(error)(
                        f"the target service refuses the key of this request: {error.message} (both services need the "
                        "same keys, and reading a handle the role 'read')",
                        error.code,
                    ) from None
        check_served(card, answer.model)
        _check_tokens(answer.token_ids, token_ids, num_rows)
        assert answer.states is not None
        return StatesArray(states=answer.states, numerics=answer.numerics)


def check_served(card: DrafterCard, model: ModelInfo) -> None:
    """Refuse states of a target that the drafter was not made for.

    Raises:
        MismatchError: hidden size, layers or vocabulary differ; `details` holds both sides.
    """
    check_fit(
        DrafterSide(card.name, card.taps, card.target_hidden_size, card.vocab_size),
        TargetSide(model.id, model.num_layers, model.hidden_size, model.vocab_size),
    )


def _check_tokens(held: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]", sent: Sequence[int], num_rows: int) -> None:
    if len(held) < num_rows:
        raise RequestError(
            f"the handle holds {len(held)} positions, {num_rows} are needed for the last anchor",
            ErrorCode.POSITION_OUT_OF_RANGE,
        )
    ours = np.asarray(sent[:num_rows], dtype=np.int64)
    differs = np.flatnonzero(held[:num_rows] != ours)
    if len(differs):
        raise RequestError(
            f"token_ids differ from those of the handle from position {int(differs[0])} on; use the handle of this "
            "sequence",
            details={"position": int(differs[0])},
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
