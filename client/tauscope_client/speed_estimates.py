"""Estimated speed-ups of a run's drafters from tau and costs, with what must be known to believe them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tauscope_client.costs import Cost
from tauscope_client.metrics import Interval, SpeedEstimate, estimate_speed, intervals_of
from tauscope_client.runs.headline import headline_name
from tauscope_client.runs.loading import Run
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError

__all__ = ["SPEED_SCHEMA", "DrafterSpeed", "SpeedEstimates", "estimate_speeds"]

SPEED_SCHEMA = "tauscope.speed/2"


@dataclass(frozen=True, kw_only=True)
class DrafterSpeed:
    """One drafter: its tau, what one of its drafts costs, and the estimate."""

    tau: Interval
    draft: Cost
    estimate: SpeedEstimate


@dataclass(frozen=True, kw_only=True)
class SpeedEstimates:
    """The estimates of a run.

    Attributes:
        statistic: which tau they are made of.
        step: one plain decoding step.
        verification: one verification.
        drafters: by name.
        holds: where they hold, for people.
        cautions: what spoils them, worst first.
        is_upper_bound: a verification certainly costs more than it was taken for.
    """

    statistic: str
    step: Cost
    verification: Cost
    drafters: Mapping[str, DrafterSpeed]
    holds: str
    cautions: tuple[str, ...]
    is_upper_bound: bool

    def to_dict(self) -> dict[str, Any]:
        """The content of `speed.json`."""
        return {
            "schema": SPEED_SCHEMA,
            "is_estimate": True,
            "is_upper_bound": self.is_upper_bound,
            "statistic": self.statistic,
            "step": self.step.to_dict(),
            "verification": self.verification.to_dict(),
            "holds": self.holds,
            "cautions": list(self.cautions),
            "drafters": {
                name: {
                    "tau": one.tau.estimate,
                    "draft": one.draft.to_dict(),
                    "speed_up": one.estimate.speed_up,
                    "low": one.estimate.low,
                    "high": one.estimate.high,
                    "break_even_tau": one.estimate.break_even_tau,
                }
                for name, one in self.drafters.items()
            },
        }


def estimate_speeds(run: Run, drafts: Mapping[str, Cost], *, step: Cost, verification: Cost) -> SpeedEstimates:
    """Estimate for each drafter of `drafts`.

    Args:
        run: a finished run.
        drafts: drafter -> cost of one of its drafts.
        step: one plain decoding step of the target.
        verification: one verification.

    Raises:
        RequestError: a cost that cannot be.
        MismatchError: a draft was timed on a CPU and the step on a server whose device is not known.
    """
    statistic = headline_name(run.results)
    for name, draft in drafts.items():
        if draft.is_of_a_cpu and step.origin == "measured" and step.device is None:
            raise MismatchError(
                f"a draft of {name!r} took {draft.ms:.3g} ms on a CPU, and the target's step was timed on a server of "
                "another kind: together they are no estimate of anything. Serve the drafter on the target's device, or "
                "say by --draft-ms what a draft costs there",
                ErrorCode.TARGET_MISMATCH,
            )
    found: dict[str, DrafterSpeed] = {}
    for name, draft in drafts.items():
        tau = intervals_of(run.measured(name), [statistic])[statistic]
        try:
            estimate = estimate_speed(
                tau, draft_cost_ms=draft.ms, target_cost_ms=step.ms, verify_cost_ms=verification.ms
            )
        except ValueError as error:
            raise RequestError(str(error)) from error
        found[name] = DrafterSpeed(tau=tau, draft=draft, estimate=estimate)
    costs = [step, *drafts.values()]
    named = dict.fromkeys(cost.device for cost in costs if cost.device is not None)
    # "cpu" is said already by "cpu (its name)"
    devices = [one for one in named if not any(other.startswith(f"{one} (") for other in named)]
    if devices:
        holds = f"on {' and '.join(devices)}"
    elif step.origin == "given":
        holds = "for the costs given"
    else:
        holds = f"on the device of the {'reference server' if step.origin == 'measured' else 'target'}"
    return SpeedEstimates(
        statistic=statistic,
        step=step,
        verification=verification,
        drafters=found,
        holds=holds,
        cautions=tuple(_cautions(step, verification, list(drafts.values()))),
        is_upper_bound=_is_upper_bound(step, verification),
    )


def _is_upper_bound(step: Cost, verification: Cost) -> bool:
    """On a CPU a verification computes as many positions more, and takes as much longer."""
    return step.is_of_a_cpu and verification.origin == "assumed"


def _cautions(step: Cost, verification: Cost, drafts: list[Cost]) -> list[str]:
    cautions = []
    if any(cost.is_of_a_cpu for cost in (step, *drafts)):
        cautions.append(
            "measured on a CPU: this is about that CPU only and says nothing about a GPU, where drafts, steps and "
            "verifications cost in other proportions"
        )
    if _is_upper_bound(step, verification):
        cautions.append(
            "on a CPU a verification costs more than a plain step, because it computes as many positions more: the "
            "estimate is an upper bound; give --verify-ms"
        )
    if step.origin == "measured" and step.device is not None:
        cautions.append(
            "the target's step was timed in the target service, which is no inference engine: a server decodes faster, "
            "and gains less; name one with --reference"
        )
    origins = {cost.origin for cost in (step, *drafts)}
    if origins == {"measured", "given"}:
        cautions.append("one cost is measured and one given: the estimate holds if both are of the same device")
    return cautions
