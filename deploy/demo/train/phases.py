"""The run: phases in order, each able to fail alone, with a record, a card and an archive after each."""

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from deploy.demo.train.card import write_card
from deploy.demo.train.chat import FRESH_PROMPTS
from deploy.demo.train.environment import environment
from deploy.demo.train.fit import Log
from deploy.demo.train.packing import archive, write_json
from deploy.demo.train.pair import PairRun
from deploy.demo.train.planted import DEFECTS, make_dspark, make_eagle3, make_planted
from deploy.demo.train.prepare import is_complete, load_dataset
from deploy.demo.train.report import DEMO_TRAIN_PROMPTS, answer_demo, evaluate
from deploy.demo.train.settings import SEED, Budget, Plan

PART_BYTES = 15 << 20


class Phase(NamedTuple):
    """One step of the run.

    Attributes:
        name: Shown and recorded; unique.
        action: What it does.
        expected_s: Device seconds it is known to take; it is skipped when fewer are left before the deadline.
        needs: Names of phases without which it makes no sense.
    """

    name: str
    action: Callable[[], None]
    expected_s: float
    needs: tuple[str, ...] = ()


class Recipe:
    """All phases over one working folder.

    Args:
        plan: Sizes and budgets.
        work: Folder of results; what an earlier run left there is taken up.
        device: ``cuda`` or ``cpu``.
        log: Takes one line.
        deadline_s: Seconds after which no further phase is started; None for no limit.
        archive_to: Where to put the archive parts after every phase; None for none.
        wait_for_data: Returns once the stored dataset is whole.
        only: Names of the phases to run; the others are left out. None for all.
        start: Reading of ``clock`` that counts as the beginning.
        clock: Seconds.
    """

    def __init__(
        self,
        plan: Plan,
        work: Path,
        *,
        device: str,
        log: Log,
        deadline_s: float | None = None,
        archive_to: Path | None = None,
        only: tuple[str, ...] | None = None,
        wait_for_data: Callable[[], object] | None = None,
        start: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._work, self._device, self._log = plan, work, device, log
        self._deadline_s, self._archive_to, self._clock = deadline_s, archive_to, clock
        self._start = clock() if start is None else start
        self._only, self._wait_for_data = only, wait_for_data
        self._bundle = work / "bundle"
        self._reference_delta_rule = False
        plain = self._bundle / "plain"
        self._pair = PairRun(plan.target, plan.drafter, plan, self._bundle, work / "answers.npz", device, log)
        self._plain = PairRun(
            plan.plain_target, plan.plain_drafter, plan, plain, work / "plain-answers.npz", device, log
        )
        plain.mkdir(parents=True, exist_ok=True)
        self._run: dict[str, Any] = {
            "plan": asdict(plan),
            "seed": SEED,
            "environment": environment(device),
            "phases": {},
        }
        self.record: dict[str, Any] = {"runs": []}
        earlier = self._bundle / "run.json"
        if earlier.exists():
            self.record = json.loads(earlier.read_text(encoding="utf-8"))
            self._pair.record, self._plain.record = self.record["pair"], self.record["plain_pair"]
        self.record["runs"].append(self._run)

    def phases(self) -> list[Phase]:
        """The phases in order of importance."""
        plan = self._plan

        pair, plain = self._pair, self._plain

        def seconds(budget: Budget) -> float:
            return budget.seconds or 0.0

        def evaluate_pair() -> None:
            evaluate(pair, answer_demo(pair, batch=self._demo_batch()))

        def plain_target() -> None:
            plain.make_target(plan.plain_target_budget)
            plain.polish_target(plan.plain_polish_budget)

        def plain_drafter() -> None:
            pair.features = None  # room for the second pair's features
            plain.make_answers(plan.num_plain_answers)
            plain.make_heldout()
            plain.make_features()
            plain.make_pair(plan.plain_drafter_budget, with_early=False)
            evaluate(plain, answer_demo(plain, batch=self._demo_batch()))

        def polish() -> None:
            pair.polish_target(plan.polish_budget, reference_delta_rule=self._reference_delta_rule)

        target_s, polish_s = seconds(plan.target_budget), seconds(plan.polish_budget) + 20
        small_s, family_s = seconds(plan.small_budget) + 2, seconds(plan.family_budget) + 5
        plain_s, plain_drafter_s = seconds(plan.plain_target_budget) + 20, seconds(plan.plain_drafter_budget) + 25
        extra = ("features", "heldout")
        planted = [Phase(d.name, partial(make_planted, pair, d, plan.small_budget), small_s, extra) for d in DEFECTS]
        return [
            Phase("gradients", self._check_gradients, 0),
            Phase("warm-up", self._warm_up, 0, ("gradients",)),
            Phase("data", self._make_data, 0),
            Phase("target", lambda: pair.make_target(plan.target_budget), target_s, ("data",)),
            Phase("polish", polish, polish_s, ("target",)),
            Phase("answers", lambda: pair.make_answers(plan.num_answers), 20, ("target",)),
            Phase("features", pair.make_features, 5, ("answers",)),
            Phase("heldout", pair.make_heldout, 5, ("target",)),
            Phase("drafter", lambda: pair.make_pair(plan.drafter_budget, with_early=True), 20, ("features",)),
            Phase("evaluation", evaluate_pair, 5, ("answers", "heldout")),
            *planted,
            Phase("dspark", lambda: make_dspark(pair, plan.family_budget), family_s, extra),
            Phase("eagle3", lambda: make_eagle3(pair, plan.family_budget), family_s, extra),
            Phase("plain-target", plain_target, plain_s, ("data",)),
            Phase("plain-drafter", plain_drafter, plain_drafter_s, ("plain-target",)),
        ]

    def selected(self) -> list[Phase]:
        """The phases to run: all, or those asked for and what they need."""
        phases = self.phases()
        if self._only is None:
            return phases
        unknown = set(self._only) - {p.name for p in phases}
        if unknown:
            raise ValueError(f"only={sorted(unknown)}: no such phase; there are {[p.name for p in phases]}")
        wanted = set(self._only)
        for phase in reversed(phases):
            if phase.name in wanted:
                wanted.update(phase.needs)
        return [p for p in phases if p.name in wanted]

    def _demo_batch(self) -> int:
        """On a GPU the demo's prompts are answered together; on a CPU one by one, which is exact and no slower
        there.
        """
        return len(FRESH_PROMPTS) + DEMO_TRAIN_PROMPTS if self._device == "cuda" else 1

    def run(self) -> bool:
        """Run every phase; True when none failed. A failed or skipped phase stops only those that need it."""
        done: set[str] = set()
        for phase in self.selected():
            elapsed = self._clock() - self._start
            entry: dict[str, Any] = {"started_s": round(elapsed, 1)}
            self._run["phases"][phase.name] = entry
            missing = [n for n in phase.needs if n not in done]
            if missing:
                entry["skipped"] = f"needs {', '.join(missing)}"
            elif self._deadline_s is not None and elapsed + phase.expected_s > self._deadline_s:
                entry["skipped"] = f"expected {phase.expected_s:.0f} s, {self._deadline_s - elapsed:.0f} s left"
            if "skipped" in entry:
                self._log(f"-- {phase.name}: skipped, {entry['skipped']}")
                continue
            self._log(f">> {phase.name}")
            try:
                phase.action()
                done.add(phase.name)
            except Exception as error:
                entry["failed"] = f"{type(error).__name__}: {error}"[:500]
                self._log(f"!! {phase.name} failed\n{traceback.format_exc()}")
            if self._device == "cuda":
                torch.cuda.synchronize()
                entry["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
            entry["seconds"] = round(self._clock() - self._start - elapsed, 1)
            self._log(f"<< {phase.name}: {entry['seconds']} s")
            self._save()
        self._run["total_s"] = round(self._clock() - self._start, 1)
        self._save()
        return not any("failed" in e for e in self._run["phases"].values())

    def _save(self) -> None:
        self.record["pair"], self.record["plain_pair"] = self._pair.record, self._plain.record
        write_json(self._bundle / "run.json", self.record)
        write_card(self._bundle / "README.md", self.record)
        if self._archive_to is not None and (self._bundle / "target").exists():
            extras = [
                self._work / "answers.npz",
                self._work / "data" / "heldout.npz",
                self._work / "data" / "train.npz",
            ]
            archive([self._bundle, *extras], self._archive_to, part_bytes=PART_BYTES)

    def _make_data(self) -> None:
        folder = self._work / "data"
        if not is_complete(folder) and self._wait_for_data is not None:
            self._wait_for_data()
        self._pair.dataset = self._plain.dataset = data = load_dataset(folder)
        self.record.setdefault("data", data.record)
        self._log(f"  { {k: v for k, v in data.record.items() if isinstance(v, int)} }")

    def _warm_up(self) -> None:
        if not (self._bundle / "target" / "config.json").exists():
            self._pair.warm_up(reference_delta_rule=self._reference_delta_rule)

    def _check_gradients(self) -> None:
        """On a GPU, compare the repaired kernels with float32; fall back to the reference delta rule when they are
        off.
        """
        if self._device != "cuda":
            return
        from deploy.demo.train.kernels import MAX_GRADIENT_ERROR, gradient_error, install_backward
        from deploy.demo.train.target import innermost, library_module
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        install_backward()
        self._reference_delta_rule = True
        reference = innermost(library_module("hybrid").torch_chunk_gated_delta_rule)
        errors = gradient_error(reference, chunk_gated_delta_rule, device=self._device)
        self._run["kernel_gradient_error"] = errors
        self._reference_delta_rule = not max(errors.values()) < MAX_GRADIENT_ERROR
        self._log(f"  {errors}, reference delta rule: {self._reference_delta_rule}")
