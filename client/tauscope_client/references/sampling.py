"""How the text of a reference is chosen: greedily, or sampled with settings and a seed that are written down.

Along greedy text replay predicts what a server accepts. Along sampled text a match with the text is a match with one
sample only; what sampling would accept there is an expectation (see `tauscope_client.expecting`).
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from tauscope_client.references.record import Reference
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError

__all__ = ["GREEDY", "TextSampling"]

_SEED_BITS = 31
"""Seeds that every engine takes: signed 32-bit."""


@dataclass(frozen=True, kw_only=True)
class TextSampling:
    """Sampling settings of a text; the same ones filter target and draft distributions of its expectation.

    Attributes:
        temperature: 0 is greedy, and the rest then means nothing.
        top_k: sample from the k best; 0 for all.
        top_p: sample from the smallest set of this mass; 1 for all.
        seed: of the whole set in settings, of one text in a turn (`for_turn`).

    Raises:
        RequestError: a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine takes."""
        if not 0 <= self.temperature <= 100:
            raise RequestError(f"temperature {self.temperature:g}: expected 0 (greedy) to 100")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise RequestError(f"top_k {self.top_k}, top_p {self.top_p:g}: expected 0 or more, and above 0 to 1")

    @property
    def is_greedy(self) -> bool:
        """Nothing is drawn."""
        return self.temperature == 0

    def for_turn(self, turn_id: str) -> "TextSampling":
        """The same with a seed of the turn's own, which does not depend on the order of the prompts."""
        if self.is_greedy:
            return GREEDY
        drawn = hashlib.sha256(f"{self.seed}/{turn_id}".encode()).digest()
        return replace(self, seed=int.from_bytes(drawn[:4], "little") % (1 << _SEED_BITS))

    def to_dict(self) -> dict[str, Any]:
        """What decides the numbers; greedy text has only its temperature."""
        if self.is_greedy:
            return {"temperature": 0.0}
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "seed": self.seed}

    def check(self, reference: Reference, *, where: str) -> None:
        """Make sure that a stored text was chosen this way; the seed is its own affair.

        Raises:
            MismatchError: it was chosen in another way.
        """
        found = (reference.temperature, reference.top_k, reference.top_p)
        if found != (self.temperature, self.top_k, self.top_p) and not (self.is_greedy and reference.temperature == 0):
            raise MismatchError(
                f"{where}: the reference for {reference.id!r} was made at temperature {found[0]:g} (top_k {found[1]}, "
                f"top_p {found[2]:g}), asked for is {self.temperature:g} (top_k {self.top_k}, top_p {self.top_p:g}): "
                "greedy and sampled texts are never mixed",
                ErrorCode.TARGET_MISMATCH,
            )

    @property
    def words(self) -> str:
        """For people."""
        if self.is_greedy:
            return "greedy"
        limits = [f"top_k {self.top_k}"] * bool(self.top_k) + [f"top_p {self.top_p:g}"] * (self.top_p < 1)
        return ", ".join([f"sampled at temperature {self.temperature:g}", *limits])


GREEDY = TextSampling()
"""The kind of text that replay predicts exactly."""
