"""Puts the page together: one file, no network, nothing in it that a prompt could turn into markup."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from tauscope_client.report.texts import embed_json, prompt_payload
from tauscope_client.report.view import view_of
from tauscope_client.runs.loading import Run

__all__ = ["render_report"]


def render_report(run: Run) -> str:
    """Write the report of a finished run as one HTML page.

    Raises:
        RequestError: the run is not finished, or its files are damaged.
    """
    here = files("tauscope_client.report")
    template, style, script = (here.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", "page.js"))
    environment = Environment(loader=DictLoader({"page.html": template}), autoescape=True, undefined=StrictUndefined)
    environment.filters["tau"] = lambda value: "–" if value is None else f"{value:.2f}"
    view = view_of(run)
    payloads = [
        Markup(embed_json(prompt_payload(run, line.id, view.names)))  # noqa: S704 - embed_json leaves no markup
        for line in view.prompts
    ]
    # A page that holds text of models and users allows exactly its own script and style, and no network at all.
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    return environment.get_template("page.html").render(
        view=view,
        payloads=payloads,
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        names_json=Markup(embed_json(list(view.names))),  # noqa: S704 - embed_json leaves no markup
    )


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
