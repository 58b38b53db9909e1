"""Watches a folder: every checkpoint that is finished being written is loaded, evaluated on frozen text, and ranked."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tauscope_client.comparing import Side, compare_sides
from tauscope_client.drafter import DrafterClient
from tauscope_client.evaluate import EvalSettings, evaluate
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptFile
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stored import StoredSource
from tauscope_client.runs.files import safe_name
from tauscope_client.runs.loading import load_run
from tauscope_client.target import TargetClient
from tauscope_client.watch.checkpoints import Checkpoint, find_checkpoints, finished
from tauscope_client.watch.leaderboard import Entry, best_of, read_entries, write_leaderboard
from tauscope_wire.errors import ErrorCode, NotFoundError, RequestError, RetryableError, TauscopeError, UnreachableError
from tauscope_wire.messages import DrafterLoadRequest

__all__ = ["Watch", "WatchSettings"]


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How checkpoints are evaluated.

    Attributes:
        folder: where checkpoints appear.
        out: where runs and the leaderboard go.
        service_folder: the same folder as the drafter service sees it, when it is on another machine.
        options: what the files of a checkpoint do not say: block_size, taps, mask_token_id, rope_theta, ...
        evaluation: of each checkpoint; its `drafters` are replaced.
        poll_s: pause between two looks; a checkpoint that changed between them is still being written.
    """

    folder: Path
    out: Path
    service_folder: str | None
    options: dict[str, Any]
    evaluation: EvalSettings
    poll_s: float


class Watch:
    """One watch over one folder."""

    def __init__(
        self,
        settings: WatchSettings,
        prompts: PromptFile,
        *,
        target: TargetClient,
        drafter: DrafterClient,
        references: Path,
        progress: Progress,
        sleep: Callable[[float], None],
    ) -> None:
        """Continue the leaderboard in `settings.out`.

        Args:
            settings: what to watch and how.
            prompts: what to evaluate on.
            target: the target service.
            drafter: the drafter service; must be allowed to load checkpoints (--root).
            references: frozen answers to the prompts.
            progress: told how far an evaluation is.
            sleep: how to wait, in seconds.

        Raises:
            RequestError: no such folder.
        """
        if not settings.folder.is_dir():
            raise RequestError(f"{settings.folder}: no such folder to watch")
        self._settings = settings
        self._prompts = prompts
        self._target = target
        self._drafter = drafter
        self._source: ReferenceSource = StoredSource(references)
        self._progress = progress
        self._sleep = sleep
        self.entries = read_entries(settings.out)

    def run(self, *, once: bool) -> Iterator[Entry]:
        """Give every new entry as it comes; with `once` until all checkpoints that are there now are done.

        Raises:
            TauscopeError: a service is gone, or a failure that is not the checkpoint's.
        """
        before = {one.name: one for one in find_checkpoints(self._settings.folder)}
        while True:
            self._sleep(self._settings.poll_s)
            now = find_checkpoints(self._settings.folder)
            done = {(entry.name, entry.state) for entry in self.entries}
            ready = [one for one in finished(before, now) if (one.name, _digest(one)) not in done]
            for checkpoint in ready:
                entry = self._evaluate(checkpoint)
                self.entries = [old for old in self.entries if old.name != entry.name] + [entry]
                write_leaderboard(self._settings.out, self.entries)
                yield entry
            if once and len(finished(before, now)) == len(now):
                return
            before = {one.name: one for one in now}

    def _evaluate(self, checkpoint: Checkpoint) -> Entry:
        entry = Entry(checkpoint.name, checkpoint.step, str(checkpoint.path), _digest(checkpoint))
        try:
            self._load(checkpoint)
        except (UnreachableError, RetryableError):
            raise
        except TauscopeError as error:
            if error.code in {ErrorCode.ROLE_REQUIRED, ErrorCode.KEY_REQUIRED, ErrorCode.KEY_UNKNOWN}:
                raise
            return replace(entry, failure=error.message)
        try:
            return self._measure(entry)
        finally:
            self._unload(checkpoint.name)

    def _measure(self, entry: Entry) -> Entry:
        out = self._settings.out / "runs" / f"{safe_name(entry.name)}-{entry.state[:8]}"
        evaluation = replace(self._settings.evaluation, drafters=(entry.name,))
        try:
            outcome = evaluate(
                evaluation,
                self._prompts,
                out,
                target=self._target,
                drafter=self._drafter,
                source=self._source,
                progress=self._progress,
            )
        except (UnreachableError, RetryableError):
            raise
        except TauscopeError as error:
            return replace(entry, failure=error.message)
        overall = outcome.results["drafters"][entry.name]["overall"]
        interval = overall["intervals"].get("tau", {})
        return replace(
            entry,
            run=str(PurePosixPath("runs") / out.name),
            tau=overall["values"]["tau"],
            low=interval.get("low"),
            high=interval.get("high"),
            num_prompts=outcome.results["num_prompts"],
            against_best=self._against_best(entry.name, out),
            failure=f"{len(outcome.failures)} prompts failed" if outcome.failures else "",
        )

    def _against_best(self, name: str, out: Path) -> str:
        best = best_of([entry for entry in self.entries if entry.name != name])
        if best is None or best.run is None:
            return ""
        before = Side(load_run(self._settings.out / best.run), best.name)
        found = compare_sides(before, Side(load_run(out), name), is_forced=True)
        difference = found.statistics["tau"].difference
        if difference.estimate is None or difference.low is None or difference.high is None:
            return f"{best.name}: cannot tell"
        said = f"{difference.estimate:+.3f} ({difference.low:+.2f} to {difference.high:+.2f}) against {best.name}"
        return f"{said}, although {found.reasons[0]}" if found.reasons else said

    def _load(self, checkpoint: Checkpoint) -> None:
        folder = self._settings.service_folder
        path = str(checkpoint.path.resolve()) if folder is None else str(PurePosixPath(folder) / checkpoint.path.name)
        self._unload(checkpoint.name)
        self._drafter.load(
            DrafterLoadRequest.model_validate({"name": checkpoint.name, "path": path, **self._settings.options})
        )

    def _unload(self, name: str) -> None:
        try:
            self._drafter.unload(name)
        except NotFoundError:
            return


def _digest(checkpoint: Checkpoint) -> str:
    return hashlib.sha256(repr(checkpoint.state).encode()).hexdigest()
