"""The card of a drafter for a public target, written by the run from its record."""

from pathlib import Path
from typing import Any

from deploy.demo.train.card import TAU_HEADER, table, tau_row

FEW_PROMPTS = 1000
"""Below so many answers a drafter rather knows them by heart than the target."""


def render_card(record: dict[str, Any]) -> str:
    """The card as Markdown."""
    target, prompts, answers = record["target"], record["prompts"], record["answers"]
    drafter, environment = record["drafter"], record["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment.items() if name != "device")
    since = f" since step {drafter['taken_up_at']}, where it was taken up" if "taken_up_at" in drafter else ""
    out = [
        f"# A DFlash drafter for {target['name']}",
        f"z-lab's format, {drafter['parameters']:,} parameters without embedding and head, which are the target's: "
        f"{drafter['layers']} layers, block of {drafter['block']} (one anchor, {drafter['block'] - 1} masks), decoder "
        f"layers {', '.join(map(str, drafter['taps']))} (0-based outputs), mask token {drafter['mask_id']}. The "
        f"target: {target['layers']} decoder layers, hidden {target['hidden']}, vocabulary {target['vocab']:,}, "
        f"sha256 of its `config.json` `{target['config_sha256']}`.",
    ]
    if answers["sequences"] < FEW_PROMPTS:
        out.append(
            f"It was trained on {answers['sequences']} answers: enough to exercise measurements with rounds of many "
            "lengths, too few to be of use for anything else."
        )
    out.append(
        "Tau is emitted tokens per round (accepted drafts and one more, cut at the end of the text) over the serving "
        f"walk on greedy references, pooled over rounds; intervals resample prompts. {record['where']}."
    )
    rows = [tau_row(f"prompts {name}", value) for name, value in record["tau"].items() if value["rounds"]]
    out.append(table(["", *TAU_HEADER[1:]], rows) if rows else "No answer was long enough for a round.")
    out += [
        "## Data and licence",
        f"{prompts['trained_on']} prompts (`{prompts['file']}`, sha256 `{prompts['sha256']}`), "
        f"{prompts['heldout']} more held out. Trained on the target's own greedy answers to them: "
        f"{answers['sequences']} answers, {answers['response_tokens']:,} tokens, at most {answers['max_new_tokens']} "
        f"each, {answers['ended']:.1%} ended by themselves; {answers['agreement']:.4f} of their tokens are the "
        "argmax of the prefill that the features come from. Nothing else went in, so the target's licence says what "
        "may be done with the result.",
        "## Training",
        f"{drafter['steps']} steps in {drafter['seconds']} s{since}, last loss {drafter['final_loss']}; the softmax "
        f"covered {drafter['scored_tokens']:,} tokens of the vocabulary. Seed {record['seed']}, "
        f"{environment['device']}, {record['seconds']} s in all. Versions: {versions}.",
        *([table(["step", "loss"], [list(point) for point in drafter["curve"]])] if drafter["curve"] else []),
        f"    python -m deploy.demo.train.public {record['arguments']}",
    ]
    return "\n\n".join(out) + "\n"


def write_card(path: Path, record: dict[str, Any]) -> None:
    """Write the card."""
    path.write_text(render_card(record), encoding="utf-8")
