"""One self-contained page about a run: `view` chooses what is shown, `charts` draws, `page` puts the file together."""

from tauscope_client.report.page import render_report

__all__ = ["render_report"]
