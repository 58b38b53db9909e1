"""References from a file that was frozen before: the same text for every drafter, every machine, every day."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.references.source import Completion, Turn
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError

__all__ = ["StoredSource", "read_references"]


def read_references(path: Path, *, tolerate_torn_end: bool = False) -> list[Reference]:
    """Read a `references.jsonl`.

    Args:
        path: the file.
        tolerate_torn_end: leave out a last line that was cut by a kill.

    Raises:
        RequestError: no such file, or a line that is not a reference; names file and line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror or error})") from error
    references: list[Reference] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            reference = Reference.model_validate_json(line)
        except ValidationError as error:
            if tolerate_torn_end and number == len(lines):
                break
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise RequestError(f"{path}:{number}: not a reference: {where}: {first['msg']}") from error
        if ids_sha256(reference.prompt_ids) != reference.prompt_sha256:
            raise RequestError(f"{path}:{number}: prompt_sha256 is not the hash of prompt_ids; the line was edited")
        references.append(reference)
    return references


class StoredSource:
    """A frozen reference file."""

    name = "file"

    def __init__(self, path: Path) -> None:
        """Read the file at once.

        Raises:
            RequestError: as `read_references`, or a turn that comes twice.
        """
        self._path = path
        self._by_id: dict[str, Reference] = {}
        for reference in read_references(path):
            if reference.id in self._by_id:
                raise RequestError(f"{path}: {reference.id!r} comes twice; one reference for each turn")
            self._by_id[reference.id] = reference

    def facts(self) -> dict[str, Any]:
        """Where the stored text came from."""
        origins = {str(sorted(reference.engine.items())): reference.engine for reference in self._by_id.values()}
        engine = next(iter(origins.values())) if len(origins) == 1 else {}
        return {**engine, "stored": True, "num_origins": len(origins)}

    def max_new_tokens(self) -> int:
        """The largest limit that every stored answer can fill."""
        return min((reference.max_new_tokens for reference in self._by_id.values()), default=1)

    def sampling(self) -> TextSampling:
        """How the stored texts were chosen; the seed is the first text's.

        Raises:
            MismatchError: in more than one way.
        """
        first = next(iter(self._by_id.values()), None)
        if first is None or first.temperature == 0:
            found = GREEDY
        else:
            found = TextSampling(
                temperature=first.temperature, top_k=first.top_k, top_p=first.top_p, seed=first.seed or 0
            )
        for reference in self._by_id.values():
            found.check(reference, where=str(self._path))
        return found

    def complete(self, turn: Turn) -> Completion:
        """The stored answer, cut to the limit asked for.

        Raises:
            RequestError: no reference for the turn, or it is shorter than the limit asked for.
            MismatchError: it was made for other prompt ids.
        """
        reference = self._by_id.get(turn.id)
        if reference is None:
            raise RequestError(f"{self._path}: no reference for {turn.id!r}; freeze one with: tauscope references")
        turn.sampling.check(reference, where=str(self._path))
        if reference.prompt_sha256 != ids_sha256(turn.prompt_ids):
            raise MismatchError(
                f"{self._path}: the reference for {turn.id!r} answers {len(reference.prompt_ids)} other prompt ids "
                f"than the {len(turn.prompt_ids)} rendered now: another chat template, template kwargs, or prompt",
                ErrorCode.TARGET_MISMATCH,
            )
        ids, limit = reference.response_ids, turn.max_new_tokens
        if reference.finish_reason == "length" and limit > len(ids):
            raise RequestError(
                f"{self._path}: the reference for {turn.id!r} was cut at {len(ids)} tokens; "
                f"--max-new-tokens {limit} needs a longer one: use at most {len(ids)}"
            )
        finish, tail = reference.finish_reason, reference.tail_ids
        if limit < len(ids):
            tail, ids, finish = [*ids[limit:], *tail], ids[:limit], "length"
        return Completion(
            response_ids=list(ids),
            finish_reason=finish,
            tail_ids=list(tail[: turn.tail_tokens]),
            drift=reference.drift if reference.drifted else "",
            served=reference.served,
            seed=reference.seed,
        )
