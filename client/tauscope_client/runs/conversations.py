"""Turns of one conversation belong together: conversations are what is drawn, so intervals resample those."""

from collections.abc import Sequence
from dataclasses import replace

from tauscope_client.metrics import PromptResult, Ratio

__all__ = ["CONVERSATION", "by_conversation"]

CONVERSATION = "conversation"
"""Tag of a turn of a conversation: the prompt that it belongs to."""


def by_conversation(prompts: Sequence[PromptResult]) -> list[PromptResult]:
    """One entry for each conversation, its turns added up; single prompts as they are.

    Only the ratios are added (what intervals and comparisons use); everything else is that of the first turn with
    rounds. A statistic that some turn with rounds lacks is left out.
    """
    groups: dict[str, list[PromptResult]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.tags.get(CONVERSATION, prompt.prompt_id), []).append(prompt)
    return [_merged(turns) if len(turns) > 1 else turns[0] for turns in groups.values()]


def _merged(turns: Sequence[PromptResult]) -> PromptResult:
    told = [turn for turn in turns if not turn.is_empty] or list(turns)
    names = [name for name in told[0].ratios if all(name in turn.ratios for turn in told)]
    ratios = {
        name: Ratio(
            sum(turn.ratios[name].numerator for turn in told), sum(turn.ratios[name].denominator for turn in told)
        )
        for name in names
    }
    return replace(told[0], ratios=ratios)
