"""`summary.md`: one page for a pull request."""

from collections.abc import Mapping, Sequence
from typing import Any

from tauscope_client.runs.agreement import agreement_line
from tauscope_client.runs.comparison import (
    Row,
    comparison_lines,
    engine_rows,
    headline_rows,
    position_rows,
    split_rows,
    strata_rows,
    used_definitions,
)
from tauscope_client.runs.headline import kind_of_text, tau_label
from tauscope_client.runs.manifest import Manifest
from tauscope_client.runs.served import served_lines
from tauscope_client.runs.stability_line import stability_line

__all__ = ["summary_markdown"]


def summary_markdown(results: Mapping[str, Any], manifest: Manifest) -> str:
    """Write the page."""
    drafters = results["drafters"]
    names = list(drafters)
    lines = [f"# {tau_label(results)} of {' and '.join(map(_cell, names)) or 'nothing'}", ""]
    model = manifest.target.get("model", {})
    reference = manifest.reference
    lines += [
        f"{results['num_prompts']} prompts ({kind_of_text(results)}) of `{_cell(manifest.prompts.get('name', ''))}` "
        f"(sha256 {str(manifest.prompts.get('sha256', ''))[:12]}), target {_cell(model.get('id', '?'))}, "
        f"references from {_cell(reference.get('kind', '?'))} {_cell(reference.get('version', ''))}, "
        f"{manifest.created_at}.",
        "",
    ]
    lines += [f"> **Careful:** {_cell(warning)}" for warning in results["warnings"]]
    lines += [""] if results["warnings"] else []
    lines += _table(["", *names], headline_rows(drafters) + split_rows(results))
    said = [*comparison_lines(results), *served_lines(results), *agreement_line(results), *stability_line(results)]
    for line in said:
        lines += ["", f"{_cell(line[0].upper() + line[1:])}."]
    for stratum, rows in strata_rows(drafters).items():
        lines += ["", f"{tau_label(results).capitalize()} by {_cell(stratum)}:", "", *_table(["", *names], rows)]
    lines += [
        "",
        "The same rounds as other programs would count them:",
        "",
        *_table(["", *names], engine_rows(drafters)),
    ]
    for name in names:
        rows = position_rows(drafters[name])
        width = len(rows[0].cells) if rows else 0
        lines += ["", f"By block position, {_cell(name)}:", ""]
        lines += _table(["", *map(str, range(1, width + 1))], rows)
    if results["failures"]:
        lines += ["", "Not evaluated:", ""]
        lines += [f"- `{_cell(f['id'])}` ({_cell(f['stage'])}): {_cell(f['message'])}" for f in results["failures"]]
    lines += ["", "What the numbers mean:", ""]
    lines += [f"- **{label}**: {text}." for label, text in used_definitions(results, with_engines=True)]
    versions = ", ".join(f"{name} {value}" for name, value in manifest.versions.items())
    lines += ["", f"Made with {versions}; everything else is in `manifest.json`."]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = ["| " + " | ".join(map(_cell, head)) + " |", "|" + " --- |" + " ---: |" * (len(head) - 1)]
    return lines + ["| " + " | ".join(map(_cell, [row.label, *row.cells])) + " |" for row in rows]


def _cell(value: Any) -> str:
    """Text that cannot leave its table cell or become markup."""
    text = " ".join(str(value).split())
    for char in "\\`*_[]<>|":
        text = (
            text.replace(char, "\\" + char)
            if char in "\\|`*_[]"
            else text.replace(char, {"<": "&lt;", ">": "&gt;"}[char])
        )
    return text
