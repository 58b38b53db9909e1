"""The model card: written by the run from its record, so that no number in it is typed by hand."""

from pathlib import Path
from typing import Any

WARNING = (
    "These models are small and were trained for minutes. Their answers look like Python and are usually wrong: they "
    "exist to exercise acceptance measurements with real weights, not to write code."
)


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def tau_row(name: str, value: dict[str, Any]) -> list[Any]:
    """Cells of one tau."""
    low, high = value["interval_95"]
    deciles = value.get("tau_prompt_deciles") or []
    spread = f"{deciles[0]} / {deciles[4]} / {deciles[8]}" if len(deciles) == 9 else ""
    return [name, f"{value['tau_pooled']:.2f}", f"{low:.2f} to {high:.2f}", value["prompts"], value["rounds"], spread]


TAU_HEADER = ["drafter, prompts", "tau", "95 % interval", "prompts", "rounds", "per-prompt 10/50/90 %"]


def pair_section(title: str, record: dict[str, Any]) -> list[str]:
    """Sections of one pair."""
    out = [f"## {title}"]
    target = record.get("target")
    if target:
        main, polish, own = target["main"], target.get("polish"), target.get("own_answers_before_polish")
        out.append(
            f"Target: {target['parameters']:,} parameters; {main['steps']} steps, {main['tokens'] / 1e6:.1f} M tokens "
            f"in {main['seconds']} s (epochs: {main['epochs']['broad']} of all rows, {main['epochs']['short']} of the "
            f"short ones), last loss {main['final_loss']}. Held-out answers: NLL {target['validation']['nll']}, "
            f"accuracy {target['validation']['accuracy']}."
        )
        if polish and own:
            before = target["validation_before_polish"]
            out.append(
                f"Last stage: {polish['steps']} steps, {polish['tokens'] / 1e6:.1f} M tokens in {polish['seconds']} s "
                f"({polish['epochs']} epochs) on its own clean answers to {own['prompts']} training prompts, of which "
                f"{own['ended']:.1%} ended and {own['clean']:.1%} were clean; the others were replaced by the human "
                f"answers. Before it: NLL {before['nll']}, accuracy {before['accuracy']}."
            )
    answers = record.get("answers")
    if answers:
        out.append(
            f"Greedy answers: {answers['prompts']} training prompts, {answers['response_tokens'] / 1e6:.2f} M tokens, "
            f"{answers['ended']:.1%} ended."
        )
    for where, heldout in record.get("heldout", {}).items():
        agreement = "" if heldout["agreement"] is None else f", agreement with the prefill {heldout['agreement']:.4f}"
        out.append(
            f"{heldout['prompts']} held-out prompts, {where}: {heldout['ended']:.1%} ended, {heldout['clean']:.1%} "
            f"ended as valid Python without repetition, median {heldout['median_tokens']:.0f} tokens{agreement}. "
            f"Demo prompts that ended: {record.get('demo_ended', {}).get(where, 'not run')}."
        )
    trained = [
        [
            name,
            f"{r['parameters']:,}" if "parameters" in r else "",
            r["steps"],
            r["seconds"],
            r["final_loss"],
            r.get("early_step", ""),
        ]
        for name, r in record.items()
        if isinstance(r, dict) and "final_loss" in r
    ]
    if trained:
        out.append(table(["drafter", "parameters", "steps", "seconds", "last loss", "early state at step"], trained))
    rows = [
        tau_row(f"{n}, {split}", v)
        for n, splits in record.get("tau", {}).items()
        for split, v in splits.items()
        if v["rounds"]
    ]
    for name, r in record.items():
        heldout = r.get("heldout") if isinstance(r, dict) else None
        if heldout and "as_claimed" in heldout:
            rows += [tau_row(f"{name}, {how.replace('_', ' ')}", v) for how, v in heldout.items()]
        elif heldout:
            rows.append(tau_row(name, heldout))
    if rows:
        out.append(table(TAU_HEADER, rows))
    return out


def run_section(number: int, run: dict[str, Any]) -> list[str]:
    """One invocation: where, how long, which phases."""
    environment = run["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment.items() if name != "device")
    out = [
        f"## Run {number}",
        f"`python -m deploy.demo.train` on {environment['device']}, plan `{run['plan']['name']}`, seed {run['seed']}, "
        f"{run.get('total_s', 'an unfinished number of')} s. Versions: {versions}.",
    ]
    if "kernel_gradient_error" in run:
        out.append(f"Relative error of the kernels' gradients against float32: {run['kernel_gradient_error']}.")
    rows = [[n, e.get("seconds", ""), e.get("failed") or e.get("skipped") or ""] for n, e in run["phases"].items()]
    return [*out, table(["phase", "seconds", "note"], rows)]


def render_card(record: dict[str, Any]) -> str:
    """The card of a work folder as Markdown."""
    out = ["# Demo models", WARNING]
    out.append(
        "Tau is emitted tokens per round (accepted drafts and one more, cut at the end of the text) over the serving "
        "walk on greedy references, pooled over rounds; intervals resample prompts (2,000 times)."
    )
    if record.get("pair"):
        out += pair_section("Hybrid pair", record["pair"])
    if record.get("plain_pair"):
        out += pair_section("Full-attention pair", record["plain_pair"])
    for number, run in enumerate(record["runs"], 1):
        out += run_section(number, run)
    data = record.get("data")
    if data:
        out.append("## Data")
        counts = ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in data.items() if isinstance(v, int))
        out.append(f"Python files of permissively licensed packages installed on the training machine: {counts}.")
        packages = [
            [n, p["version"], p["licence"], p["evidence"], p["files"], p["chars"]] for n, p in data["packages"].items()
        ]
        out.append(table(["package", "version", "licence", "stated in", "files", "characters"], packages))
        if data["excluded_packages"]:
            excluded = "; ".join(f"{n}: {why}" for n, why in data["excluded_packages"].items())
            out.append(f"Left out because of their licence or because it is not stated: {excluded}.")
    return "\n\n".join(out) + "\n"


def write_card(path: Path, record: dict[str, Any]) -> None:
    """Write the card."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_card(record), encoding="utf-8")
