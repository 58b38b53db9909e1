"""From a path to a description: open, name, decide, read. No tensor data are touched, so it is cheap on any file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tauscope_drafter.checkpoint.detect import Verdict, detect
from tauscope_drafter.checkpoint.facts import Facts, Section, Settings, TargetFacts
from tauscope_drafter.checkpoint.files import open_tensors, read_json
from tauscope_drafter.checkpoint.incomplete import read_complete
from tauscope_drafter.checkpoint.names import Names, Split, normalise
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.pickles import PickleFiles
from tauscope_drafter.checkpoint.tensor_file import TensorFile
from tauscope_drafter.families import registry
from tauscope_drafter.families.family import Shapes
from tauscope_drafter.families.names import WITHOUT_WEIGHTS
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

_SHOWN = 6  # names listed in one message; the rest is counted


@dataclass(frozen=True, slots=True)
class Outline:
    """What files and names alone tell of a checkpoint.

    Attributes:
        path: as given.
        file: open tensors, None for families without weights.
        names: canonical names -> names in the file.
        found: canonical name -> shape.
        verdict: family, format, evidence.
        family: the module of the family.
        facts: what its description is read from.
    """

    path: Path
    file: TensorFile | None
    names: Names
    found: Mapping[str, tuple[int, ...]]
    verdict: Verdict
    family: ModuleType
    facts: Facts

    def described(self, spec: DrafterSpec) -> "Description":
        """With a description of what it is."""
        expected = self.family.tensor_shapes(spec)
        return Description(self.path, self.file, self.names, self.found, expected, self.verdict, spec, self.family)


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint that has been described but not loaded.

    Attributes:
        path, file, names, found, verdict, family: see `Outline`.
        expected: canonical name -> shape the family needs.
        spec: complete description.
    """

    path: Path
    file: TensorFile | None
    names: Names
    found: Mapping[str, tuple[int, ...]]
    expected: Shapes
    verdict: Verdict
    spec: DrafterSpec
    family: ModuleType

    @property
    def missing(self) -> list[str]:
        """Tensors the network needs and the file lacks."""
        return [name for name in self.expected if name not in self.found]

    @property
    def unexpected(self) -> list[str]:
        """Tensors in the file that the network does not know."""
        return [name for name in self.names.network if name not in self.expected]

    def check(self) -> None:
        """Refuse any difference between the file and what the network needs.

        Raises:
            CheckpointError: tensors missing, unexpected, or of another shape; each named.
        """
        if self.missing:
            raise CheckpointError(
                f"{self.path}: tensors missing: {_list(self.missing, self.expected)}",
                ErrorCode.TENSOR_MISSING,
                details={"tensors": self.missing},
            )
        if self.unexpected:
            raise CheckpointError(
                f"{self.path}: tensors that family {self.spec.family} does not know: "
                f"{_list(self.unexpected, self.found)}; leaving them out could change the drafts",
                ErrorCode.TENSOR_UNEXPECTED,
                details={"tensors": self.unexpected},
            )
        for name, shape in self.expected.items():
            if self.found[name] != tuple(shape):
                hint = " (it looks transposed)" if self.found[name] == tuple(reversed(shape)) else ""
                raise CheckpointError(
                    f"{self.path}: tensor {name} has shape {list(self.found[name])}, expected {list(shape)}{hint}",
                    ErrorCode.TENSOR_SHAPE,
                    details={"tensor": name, "expected": list(shape), "found": list(self.found[name])},
                )


def describe(path: Path, options: LoadOptions, target: TargetFacts | None = None) -> Description:
    """Read everything but the tensor data.

    Raises:
        CheckpointError: the path, the files or the settings cannot be used.
    """
    outline = outlined(path, options, target)
    return outline.described(read_complete(outline.facts, reader(outline)))


def reader(outline: Outline) -> Callable[[Facts], DrafterSpec]:
    """What reads a description of its family."""
    return cast(Callable[[Facts], DrafterSpec], outline.family.read)


def outlined(path: Path, options: LoadOptions, target: TargetFacts | None = None) -> Outline:
    """Open the files and decide what they are.

    Raises:
        CheckpointError: they cannot be read, or are no drafter, or could be several.
    """
    if options.family is not None:
        registry.family(options.family)  # an unknown name is refused before any file is opened
    if options.family in WITHOUT_WEIGHTS:
        return _weightless(path, options, target)
    file = open_tensors(path)
    config, origin = _config(path, options)
    infos = file.infos()
    raw = tuple(infos)
    selected = [n for n in raw if n.startswith("mtp.") or ".mtp." in n]
    names = normalise(selected or raw, str(path))
    found = _shapes(names, {name: info.shape for name, info in infos.items()}, str(path))
    state_key = file.state_key if isinstance(file, PickleFiles) else ""
    verdict = detect(
        found, config, origin=str(path), raw_names=raw, state_key=state_key.rpartition(".")[2], family=options.family
    )
    family = registry.family(verdict.family)
    canonical: Callable[[str], str] = getattr(family, "canonical_name", str)
    names = names._replace(network={canonical(n): source for n, source in names.network.items()})
    found = {canonical(n): shape for n, shape in found.items()}
    facts = _facts(origin, verdict.format, config=config, found=found, options=options, target=target)
    return Outline(path, file, names, found, verdict, family, facts)


def _weightless(path: Path, options: LoadOptions, target: TargetFacts | None) -> Outline:
    name = str(options.family)
    facts = _facts(name, "none", config={}, found={}, options=options, target=target)
    verdict = Verdict(name, "none", ("family given as an option",))
    return Outline(path, None, Names({}, {}, ()), {}, verdict, registry.family(name), facts)


def _config(path: Path, options: LoadOptions) -> tuple[dict[str, Any], str]:
    """The configuration: given, or beside the weights; empty when there is none."""
    if options.config is not None:
        return read_json(Path(options.config)), options.config
    beside = (path if path.is_dir() else path.parent) / "config.json"
    return (read_json(beside), str(beside)) if beside.is_file() else ({}, str(path))


def _facts(
    origin: str,
    format_: str,
    *,
    config: Mapping[str, Any],
    found: Mapping[str, tuple[int, ...]],
    options: LoadOptions,
    target: TargetFacts | None,
) -> Facts:
    top: list[Section] = [("", config)]
    top += [(f"{n}.", config[n]) for n in ("dflash_config", "eagle_config") if isinstance(config.get(n), Mapping)]
    inner = config.get("transformer_layer_config")
    network: list[Section] = top
    if isinstance(inner, Mapping):
        network = [("transformer_layer_config.", inner)]
    elif isinstance(config.get("text_config"), Mapping):
        network = [("text_config.", config["text_config"])]
    return Facts(
        origin=origin,
        format=format_,
        own=Settings(origin, top),
        network=Settings(origin, network),
        architectures=tuple(map(str, config.get("architectures") or ())),
        shapes=found,
        options=options,
        target=target,
        has_config=bool(config),
    )


def _shapes(names: Names, raw: Mapping[str, tuple[int, ...]], origin: str) -> dict[str, tuple[int, ...]]:
    """Canonical shapes; parts of fused tensors get theirs from the tensors beside them."""
    shapes = {name: raw[source] for name, source in names.aside.items()}
    splits: dict[str, Split] = {}
    for name, source in names.network.items():
        if isinstance(source, Split):
            splits[name] = source
        else:
            shapes[name] = raw[source]
    for name, split in splits.items():
        rows, *rest = raw[split.source]
        if split.part in ("gate_proj", "up_proj"):
            shapes[name] = (rows // 2, *rest)
            continue
        output = shapes.get(name.rpartition(f".{split.part}.")[0] + ".o_proj.weight")
        if output is None or len(output) != 2:
            raise CheckpointError(f"{origin}: {split.source} is fused and there is no o_proj to tell its parts apart")
        query = output[1]
        shapes[name] = (query if split.part == "q_proj" else (rows - query) // 2, *rest)
    return shapes


def _list(names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    shown = ", ".join(f"{name} {list(shapes[name])}" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
