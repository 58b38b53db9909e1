"""Whether drafters, a target service and a drafter service belong together, found out before any work is done."""

from collections.abc import Mapping, Sequence
from typing import Any

from tauscope_client.drafter import DrafterClient
from tauscope_client.runs.drafter_warnings import grouped
from tauscope_client.runs.loading import Run
from tauscope_client.target import TargetClient
from tauscope_wire.errors import ErrorCode, MismatchError
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import DrafterCard, DrafterServiceInfo, TargetInfo

__all__ = ["can_give_logits", "check_pair", "check_run", "pair_problems", "pair_warnings"]

_IDENTITY = ("config_sha256", "revision", "num_layers", "hidden_size", "vocab_size")


def check_pair(target: TargetInfo, service: DrafterServiceInfo, cards: Sequence[DrafterCard]) -> None:
    """Refuse a pair that cannot give a meaningful number.

    Raises:
        MismatchError: names both sides of everything that does not fit.
    """
    problems = pair_problems(target, service, cards)
    if problems:
        raise MismatchError("\n".join(problems), ErrorCode.TARGET_MISMATCH, details={"problems": problems})


def check_run(run: Run, names: Sequence[str], *, target: TargetClient, drafter: DrafterClient) -> list[DrafterCard]:
    """The drafters of a finished run as they are loaded now.

    Raises:
        NotFoundError: one is not loaded.
        MismatchError: the target service or a drafter is another one than the run was made with.
    """
    model = run.manifest.target.get("model", {})
    found = target.info().model
    if (model.get("config_sha256"), model.get("revision")) != (found.config_sha256, found.revision):
        raise MismatchError(
            f"the run was made with the target {model.get('id')} ({str(model.get('revision'))[:19]}), "
            f"the service serves {found.id} ({found.revision[:19]})",
            ErrorCode.TARGET_MISMATCH,
        )
    cards = [drafter.card(name) for name in names]
    for card in cards:
        made_with = run.manifest.drafters[card.name]["sha256"]
        if card.sha256 != made_with:
            raise MismatchError(
                f"drafter {card.name!r} has other weights than in the run ({card.sha256[:12]}, there {made_with[:12]})",
                ErrorCode.TARGET_MISMATCH,
            )
    return cards


def pair_problems(target: TargetInfo, service: DrafterServiceInfo, cards: Sequence[DrafterCard]) -> list[str]:
    """What does not fit, one line each."""
    model = target.model
    problems: list[str] = []
    other = service.target_model
    for name in _IDENTITY if other is not None else ():
        there, here = getattr(other, name), getattr(model, name)
        # A service that reads the target's files knows no revision, one that asks the target service does.
        if there and here and there != here:
            problems.append(
                f"the drafter service works with another target: its {name} is {str(there)[:19]}, that of the target "
                f"service ({model.id}) is {str(here)[:19]}; start the drafter service with this target"
            )
            break
    for card in cards:
        if card.target_hidden_size != model.hidden_size:
            problems.append(
                f"drafter {card.name!r} reads hidden states of size {card.target_hidden_size}, the target {model.id} "
                f"has {model.hidden_size}: it was made for another target"
            )
        if card.vocab_size > model.vocab_size:
            problems.append(
                f"drafter {card.name!r} drafts from {card.vocab_size} tokens, the target {model.id} has "
                f"{model.vocab_size}: it was made for another target"
            )
        for tap in card.taps:
            if not EMBEDDING <= tap < model.num_layers:
                problems.append(
                    f"drafter {card.name!r} reads layer {tap}: the target has {model.num_layers} decoder layers "
                    f"(0..{model.num_layers - 1})"
                )
            elif tap > target.deepest_layer:
                problems.append(
                    f"drafter {card.name!r} reads layer {tap}: the target service holds layers up to "
                    f"{target.deepest_layer}; start it with a deeper one"
                )
    return problems


def pair_warnings(
    target: TargetInfo, cards: Sequence[DrafterCard], *, template_kwargs: Mapping[str, Any] | None = None
) -> list[str]:
    """What a reader of the numbers must know about how they were computed.

    Args:
        target: the target service.
        cards: the drafters.
        template_kwargs: chat template options of the prompts (thinking on or off), None when there are no prompts yet.
    """
    warnings: list[str] = []
    if target.numerics.reference_kernels:
        warnings.append(
            "the target ran on reference kernels of its linear-attention layers (allowed by name): hidden states, and "
            "with them tau, may differ from those of the kernels used in training and serving"
        )
    failed = [test for test in target.self_tests if test.status == "failed"]
    warnings += [f"self-test {test.name!r} of the target service failed: {test.detail}" for test in failed]
    warnings += grouped((card.name, warning) for card in cards for warning in card.warnings)
    for card in cards:
        trained = (card.training_numerics or {}).get("template_kwargs")
        if trained is not None and template_kwargs is not None and dict(trained) != dict(template_kwargs):
            warnings.append(
                f"drafter {card.name!r} was trained on prompts rendered with {dict(trained)}, these are rendered with "
                f"{dict(template_kwargs)}: a thinking mode unlike the training's halves acceptance (--template-kwargs)"
            )
    if not can_give_logits(target):
        warnings.append("the target service does not hold its head: agreement cannot be computed")
    return warnings


def can_give_logits(target: TargetInfo) -> bool:
    """Whether the target service can say what it would have chosen itself."""
    return not any("logits" in thing or "head" in thing for thing in target.mode_cannot)
