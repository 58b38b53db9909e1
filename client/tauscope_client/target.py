"""Client of the target service: one method an endpoint."""

from collections.abc import Sequence
from functools import partial
from threading import Lock

from pydantic import BaseModel, ConfigDict

from tauscope_client.kept import KeptStates
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, MismatchError
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.layers import Plane
from tauscope_wire.messages import (
    DetokenizeAnswer,
    DetokenizeRequest,
    GenerateAnswer,
    GenerateRequest,
    HiddenReceipt,
    HiddenRequest,
    TargetInfo,
    TokenizeAnswer,
    TokenizeRequest,
)
from tauscope_wire.reader import read_hidden
from tauscope_wire.tensors import HiddenAnswer

__all__ = ["TargetClient", "check_service"]


class _Service(BaseModel):
    model_config = ConfigDict(extra="ignore")

    service: str = ""


def check_service(connection: Connection, expected: str) -> None:
    """Make sure that the address is the service that is meant.

    Raises:
        MismatchError: another service answers there; says which, and what to do.
        UnreachableError: nothing answers.
    """
    found = connection.get_json("/info", _Service).service
    if found != expected:
        what = f"a tauscope {found} service" if found else "not a tauscope service"
        other = "drafter" if expected == "target" else "target"
        advice = "the two addresses are swapped" if found == other else "check the port"
        raise MismatchError(
            f"{connection.base_url} is {what}, expected the {expected} service: {advice} (--{expected}, "
            f"TAUSCOPE_{expected.upper()}_URL)",
            ErrorCode.UNEXPECTED_ANSWER,
            details={"expected": expected, "found": found},
        )


class TargetClient:
    """The target service at one address. Safe to use from several threads."""

    def __init__(self, connection: Connection) -> None:
        """Use `connection`; nothing is sent yet."""
        self._connection = connection
        self._info: TargetInfo | None = None
        self._lock = Lock()

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._connection.base_url

    def info(self) -> TargetInfo:
        """`GET /info`, asked once."""
        with self._lock:
            if self._info is None:
                check_service(self._connection, "target")
                self._info = self._connection.get_json("/info", TargetInfo)
            return self._info

    def tokenize(self, request: TokenizeRequest) -> TokenizeAnswer:
        """`POST /tokenize`."""
        return self._connection.post_json("/tokenize", request, TokenizeAnswer)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> DetokenizeAnswer:
        """`POST /detokenize`."""
        request = DetokenizeRequest(token_ids=list(token_ids), skip_special_tokens=skip_special_tokens)
        return self._connection.post_json("/detokenize", request, DetokenizeAnswer)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each id by itself, asked for in requests that the service accepts."""
        bound = self.info().limits.max_tokens
        batches = (token_ids[at : at + bound] for at in range(0, len(token_ids), bound))
        return [piece for batch in batches for piece in self.detokenize(batch).pieces]

    def encode(self, text: str) -> list[int]:
        """Ids of raw text; no text, no ids."""
        return self.tokenize(TokenizeRequest(text=text)).token_ids if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens visible."""
        return self.detokenize(ids).text if ids else ""

    def generate(self, request: GenerateRequest) -> GenerateAnswer:
        """`POST /generate`."""
        return self._connection.post_json("/generate", request, GenerateAnswer)

    def hidden_handle(self, request: HiddenRequest) -> KeptStates:
        """`POST /hidden_states` with `return: handle`: the states stay at the service, only a summary comes along.

        Raises:
            WireError: a summary that breaks SPEC.md.
        """
        by_handle = request.model_copy(update={"return_": "handle"})
        if request.logits is None:
            return KeptStates.of_receipt(self._connection.post_json("/hidden_states", by_handle, HiddenReceipt))
        return KeptStates.of_answer(self.hidden(by_handle))

    def hidden(self, request: HiddenRequest) -> HiddenAnswer:
        """`POST /hidden_states` with the tensors in the answer.

        Raises:
            WireError: a body that breaks SPEC.md.
        """
        read = partial(read_hidden, expect=HiddenExpectation.of_request(request))
        return self._connection.post_tensors("/hidden_states", request, read)

    def fetch(
        self, handle: str, *, planes: Sequence[Plane] | None = None, positions: tuple[int, int] | None = None
    ) -> HiddenAnswer:
        """`GET /hidden_states/{handle}`: planes and positions of stored states.

        Raises:
            GoneError: the handle was evicted or never existed.
        """
        params: dict[str, str] = {}
        if planes is not None:
            params["planes"] = ",".join(map(str, planes))
        if positions is not None:
            params |= {"start": str(positions[0]), "stop": str(positions[1])}
        expect = HiddenExpectation(planes=None if planes is None else tuple(planes), positions=positions, data=True)
        return self._connection.get_tensors(f"/hidden_states/{handle}", params, partial(read_hidden, expect=expect))

    def delete(self, handle: str) -> None:
        """`DELETE /hidden_states/{handle}`."""
        self._connection.delete(f"/hidden_states/{handle}")
