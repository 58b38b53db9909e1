"""Drafts on all texts under all conditions. Each finished text is kept at once, so that a killed probe goes on."""

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.probe.asking import Asker
from tauscope_client.probe.condition import Condition
from tauscope_client.probe.conditions import Plan
from tauscope_client.probe.effects import Text
from tauscope_client.progress import Progress
from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.runs.files import JsonLines
from tauscope_client.workers import run_all
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError, TauscopeError

__all__ = ["Drafting"]

STAGE = "conditions"


class Drafting:
    """Drafts under all conditions; each finished text is kept at once."""

    def __init__(self, asker: Asker, plan: Plan, path: Path, progress: Progress, *, identity: str, seed: int) -> None:
        """Work by `plan`; nothing is sent yet.

        Args:
            asker: asks the services.
            plan: the conditions.
            path: file that is appended to.
            progress: told of every condition of every text.
            identity: of everything but the text that decides what is drafted.
            seed: of the noise.
        """
        self._asker, self._plan, self._path, self._progress = asker, plan, path, progress
        self._identity, self._seed = identity, seed
        self._accepted: dict[str, dict[str, list[int]]] = {}
        self._failures: list[Failure] = []
        self._lock = Lock()
        self.num_drafts: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def run(self, references: Sequence[Reference], *, concurrency: int) -> list[Failure]:
        """Draft on all texts that are not finished; the failures.

        Raises:
            MismatchError: the file holds drafts of another probe.
            TauscopeError: a failure that concerns all texts.
        """
        lines = JsonLines(self._path)
        try:
            self._read(lines)
            missing = [one for one in references if _key(one) not in self._accepted]
            each = len(self._plan.conditions)
            self._progress.start(STAGE, each * len(references), done=each * (len(references) - len(missing)))
            seeds = {_key(one): self._seed + index for index, one in enumerate(references)}
            run_all(lambda one: self._one(one, seeds[_key(one)], lines), missing, concurrency=concurrency)
        finally:
            lines.close()
        return self._failures

    def tried(self) -> list[Condition]:
        """Conditions that the drafter service did not refuse."""
        return [condition for condition in self._plan.conditions if condition.name not in self.refused]

    def texts(self, references: Sequence[Reference]) -> list[Text]:
        """Finished texts, in the order of the references.

        Raises:
            RequestError: none was finished.
        """
        finished = [one for one in references if _key(one) in self._accepted]
        if not finished:
            raise RequestError(f"no text could be drafted on; the first failure: {self._failures[0].message}")
        return [
            Text(one.id, one.conversation, {k: np.asarray(v, np.int32) for k, v in self._accepted[_key(one)].items()})
            for one in finished
        ]

    def _one(self, reference: Reference, seed: int, lines: JsonLines) -> None:
        accepted: dict[str, list[int]] = {}
        try:
            for condition in self._plan.conditions:
                if condition.name in self.refused:
                    continue
                self._under(condition, reference, seed, accepted)
                self._progress.advance(STAGE)
        except TauscopeError as error:
            if not concerns_one_prompt(error):
                raise
            with self._lock:
                self._failures.append(Failure.of(reference.id, "probe", error))
            self._progress.note(f"{reference.id}: {error.message}")
            return
        with self._lock:
            self._accepted[_key(reference)] = accepted
            line = {
                "identity": self._identity,
                "text": _key(reference),
                "num_drafts": self.num_drafts,
                "refused": self.refused,
                "accepted": accepted,
            }
        lines.append(json.dumps(line))

    def _under(self, condition: Condition, reference: Reference, seed: int, accepted: dict[str, list[int]]) -> None:
        try:
            drafted = self._asker.draft(reference, condition, seed=seed)
        except RequestError as error:
            if error.code is not ErrorCode.NOT_SUPPORTED:
                raise
            with self._lock:
                self.refused[condition.name] = f"{condition.name}: {error.message}"
            return
        accepted[condition.name] = drafted.accepted.tolist()
        with self._lock:
            self.num_drafts[condition.name] = drafted.num_drafts

    def _read(self, lines: JsonLines) -> None:
        for number, text in lines.lines():
            line = json.loads(text)
            if line["identity"] != self._identity:
                raise MismatchError(
                    f"{self._path}:{number}: made with another drafter, target, dtype, seed or numerics; give another "
                    "folder with --out",
                    ErrorCode.TARGET_MISMATCH,
                )
            self._accepted[line["text"]] = line["accepted"]
            self.num_drafts |= line["num_drafts"]
            self.refused |= line["refused"]


def _key(reference: Reference) -> str:
    """Names a text by what it is: frozen sets may use one id for different texts."""
    return f"{reference.id}:{ids_sha256(reference.token_ids())}"
