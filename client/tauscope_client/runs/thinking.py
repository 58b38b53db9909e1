"""Whether the answers think, seen in their text, against what the drafters were trained on.

Chat templates and models differ in how a thought is marked; the option of the template alone does not tell, because a
template may know no such option, or think unless told otherwise. So the text itself is looked at: an answer thinks when
it holds a thought that is not empty, whether the template or the model opened it. An empty thought (what templates
write when thinking is switched off) says that it does not, and no mark at all says nothing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tauscope_client.references.record import Reference
from tauscope_client.runs.drafter_warnings import listed
from tauscope_wire.messages import DrafterCard

__all__ = ["AnswerModes", "Mode", "answer_modes", "mode_of", "thinking_cautions", "trained_mode"]

Mode = Literal["on", "off"]

MARKS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek, GLM
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss
)
"""What opens and what closes a thought."""

_OPTIONS = ("enable_thinking", "thinking")
"""Names that chat templates give the switch."""

_SHOWN = 3


class AnswerModes(NamedTuple):
    """Turns by what their text shows; turns without a sign are in neither."""

    thinking: tuple[str, ...]
    not_thinking: tuple[str, ...]
    num_answers: int


def mode_of(prompt: str, answer: str) -> Mode | None:
    """Whether one answer thinks; None when nothing shows it.

    Args:
        prompt: the rendered prompt, special tokens visible.
        answer: the answer, special tokens visible.
    """
    for opens, closes in MARKS:
        last = prompt.rfind(opens)
        given = None if last < 0 else prompt[last + len(opens) :]
        if given is not None and not given.strip():  # the template opened a thought, the answer goes on with it
            return "on" if answer.partition(closes)[0].strip() else "off"
        before, mark, rest = answer.partition(opens)
        if mark and not before.strip():
            return "on" if rest.partition(closes)[0].strip() else "off"
        if given is not None and not given.replace(closes, "").strip() and prompt.rstrip().endswith(closes):
            return "off"  # the template closed an empty thought right before the answer
    return None


def answer_modes(run: Path, references: Iterable[Reference]) -> AnswerModes:
    """What the texts of a run show; a run without texts (no tokenizer at the service) shows nothing."""
    path = run / "texts.jsonl"
    known = {reference.id: reference for reference in references}
    modes: dict[Mode, list[str]] = {"on": [], "off": []}
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
        if not line.endswith("}"):
            continue  # torn by a kill, or the end of the file
        entry = json.loads(line)
        reference = known.get(entry["id"])
        if reference is None:
            continue
        start, stop = len(reference.prompt_ids), len(reference.prompt_ids) + len(reference.response_ids)
        found = mode_of("".join(entry["pieces"][:start]), "".join(entry["pieces"][start:stop]))
        if found is not None:
            modes[found].append(reference.id)
    return AnswerModes(tuple(modes["on"]), tuple(modes["off"]), len(known))


def trained_mode(card: Mapping[str, Any] | DrafterCard) -> Mode | None:
    """What the files of a drafter record about thinking in training, None when nothing."""
    numerics = card.training_numerics if isinstance(card, DrafterCard) else card.get("training_numerics")
    kwargs = (numerics or {}).get("template_kwargs") or {}
    for option in _OPTIONS:
        if isinstance(kwargs.get(option), bool):
            return "on" if kwargs[option] else "off"
    return None


def thinking_cautions(modes: AnswerModes, trained: Mapping[str, Mode | None]) -> list[str]:
    """One line for each disagreement of answers and training, and one for what cannot be told.

    Args:
        modes: of the answers.
        trained: drafter -> how it was trained, None when nobody said.
    """
    cautions = []
    for mode, named in (("off", modes.thinking), ("on", modes.not_thinking)):
        drafters = [name for name, found in trained.items() if found == mode]
        if named and drafters:
            does = "think" if mode == "off" else "do not think"
            cautions.append(
                f"{len(named)} of {modes.num_answers} answers {does} ({_named(named)}), but {listed(drafters)} "
                f"{'was' if len(drafters) == 1 else 'were'} trained with thinking {mode}: that can halve acceptance; "
                "set the switch of the chat template as in training (--template-kwargs "
                f"'{{\"enable_thinking\": {'true' if mode == 'on' else 'false'}}}')"
            )
    unknown = [name for name, found in trained.items() if found is None]
    if modes.thinking and unknown:
        cautions.append(
            f"{len(modes.thinking)} of {modes.num_answers} answers think ({_named(modes.thinking)}), and whether "
            f"{listed(unknown)} {'was' if len(unknown) == 1 else 'were'} trained on thinking is not recorded: check, a "
            "mode unlike the training's can halve acceptance (say what it was with --trained-thinking on or off)"
        )
    return cautions


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
