"""Text of others on the terminal."""

import io

from rich.console import Console

from tauscope_client.plain import shown
from tauscope_client.terminal import TerminalProgress


def test_escape_sequences_and_markup_of_others_are_shown_not_obeyed():
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system="truecolor")
    console.print(shown("a\x1b[2J\x07\u009b1m [bold]b[/bold] é"), highlight=False)
    assert "\x1b[2J" not in file.getvalue() and "\x07" not in file.getvalue() and "\u009b" not in file.getvalue()
    assert r"a\x1b[2J\x07\x9b1m [bold]b[/bold] é" in file.getvalue()


def test_without_a_terminal_progress_is_a_few_plain_lines():
    file = io.StringIO()
    with TerminalProgress(Console(file=file)) as progress:
        progress.start("drafts", 200, done=50)
        for _ in range(150):
            progress.advance("drafts")
        progress.note("a\x1b[31m note")
    lines = file.getvalue().splitlines()
    assert lines[0] == "drafts: 200, 50 finished before" and lines[-2:] == ["drafts: 200/200", r"a\x1b[31m note"]
    assert len(lines) <= 6


def test_a_stage_of_few_pieces_does_not_get_a_line_for_each():
    file = io.StringIO()
    with TerminalProgress(Console(file=file)) as progress:
        progress.start("references", 10)
        for _ in range(10):
            progress.advance("references")
    lines = file.getvalue().splitlines()
    assert lines == ["references: 10", "references: 3/10", "references: 5/10", "references: 8/10", "references: 10/10"]


def test_with_a_terminal_progress_is_bars():
    file = io.StringIO()
    with TerminalProgress(Console(file=file, force_terminal=True, width=100)) as progress:
        progress.start("drafts", 3)
        progress.advance("drafts", 3)
    assert "3/3" in file.getvalue() and "━" in file.getvalue()
