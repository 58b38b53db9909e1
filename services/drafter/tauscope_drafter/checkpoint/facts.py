"""Everything known about a checkpoint before its data are read: configuration, tensor shapes, options, the target.

Configurations spell the same thing in several places; `Settings` looks in all of them and refuses contradictions, so
that no family has to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_wire.errors import CheckpointError, ErrorCode

Section = tuple[str, Mapping[str, Any]]


class Settings:
    """Named sections of a configuration, searched together.

    Args:
        origin: the file, for messages.
        sections: label and content, in order of authority.
    """

    def __init__(self, origin: str, sections: Sequence[Section]) -> None:
        self.origin = origin
        self._sections = [(label, content) for label, content in sections if isinstance(content, Mapping)]

    def find(self, *names: str) -> Any:
        """The value under any of `names` in any section; None when none has it (or all say null).

        Raises:
            CheckpointError: two places say different things.
        """
        found: list[tuple[str, Any]] = []
        for label, content in self._sections:
            found += [(f"{label}{name}", content[name]) for name in names if content.get(name) is not None]
        for place, value in found[1:]:
            if value != found[0][1]:
                raise CheckpointError(
                    f"{self.origin}: {found[0][0]} is {found[0][1]!r} and {place} is {value!r}; they mean the same "
                    "thing, so one of them must be corrected",
                    ErrorCode.CHECKPOINT_AMBIGUOUS,
                )
        return found[0][1] if found else None

    def place(self, name: str) -> str | None:
        """Label of the first section that has `name`, with the name; None when none has it."""
        return next((f"{label}{name}" for label, c in self._sections if c.get(name) is not None), None)

    def integer(self, *names: str) -> int | None:
        """`find`, checked to be a whole number."""
        value = self.find(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(f"{self.origin}: {names[0]}={value!r} is not a whole number")
        return value

    def number(self, *names: str) -> float | None:
        """`find`, checked to be a number."""
        value = self.find(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.origin}: {names[0]}={value!r} is not a number")
        return float(value)

    def flag(self, *names: str) -> bool | None:
        """`find`, checked to be true or false."""
        value = self.find(*names)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{self.origin}: {names[0]}={value!r} is not true or false")
        return value

    def integers(self, *names: str) -> tuple[int, ...] | None:
        """`find`, checked to be a list of whole numbers."""
        value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise CheckpointError(f"{self.origin}: {names[0]}={value!r} is not a list of whole numbers")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What is known about the target model a drafter is loaded for."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """Input of every family's `read`.

    Attributes:
        origin: path of the checkpoint, for messages.
        format: who wrote it.
        own: settings of the drafter (block, taps, flags).
        network: settings of its layers (in speculators files a section of its own).
        architectures: as the configuration has them.
        shapes: canonical tensor name -> shape, set-asides included.
        options: what the user says.
        target: the target model, when known.
        has_config: whether any configuration was found.
    """

    origin: str
    format: str
    own: Settings
    network: Settings
    architectures: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    options: LoadOptions
    target: TargetFacts | None = None
    has_config: bool = True

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Shape of a tensor that the description of the network is read from.

        Raises:
            CheckpointError: it is missing or has another number of axes.
        """
        shape = self.shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{self.origin}: tensor {name} is missing", ErrorCode.TENSOR_MISSING)
        if len(shape) != rank:
            raise CheckpointError(
                f"{self.origin}: tensor {name} has shape {list(shape)}, expected {rank} axes", ErrorCode.TENSOR_SHAPE
            )
        return shape

    def agree(self, what: str, declared: int | None, found: int, tensor: str) -> int:
        """A number that tensors imply, checked against what the configuration says.

        Raises:
            CheckpointError: they differ.
        """
        if declared is not None and declared != found:
            raise CheckpointError(
                f"{self.origin}: the configuration says {what}={declared}, tensor {tensor} of shape "
                f"{list(self.shapes[tensor])} means {found}",
                ErrorCode.TENSOR_SHAPE,
                details={"setting": what, "declared": declared, "found": found, "tensor": tensor},
            )
        return found
