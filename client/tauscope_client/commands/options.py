"""Options that several commands share, and reading them."""

import json
from typing import Annotated, Any

import typer

from tauscope_client.addresses import DEFAULT_DRAFTER_URL, DEFAULT_TARGET_URL
from tauscope_wire.errors import RequestError

__all__ = ["DeadlineS", "DrafterUrl", "Key", "TargetUrl", "TemplateKwargs", "parse_template_kwargs"]

TargetUrl = Annotated[
    str,
    typer.Option("--target", envvar="TAUSCOPE_TARGET_URL", help="Address of the target service.", show_default=True),
]
DrafterUrl = Annotated[
    str,
    typer.Option("--drafter-url", envvar="TAUSCOPE_DRAFTER_URL", help="Address of the drafter service."),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="TAUSCOPE_API_KEY",
        help="API key of both services; better given by the variable.",
        show_default=False,
    ),
]
TemplateKwargs = Annotated[
    str,
    typer.Option("--template-kwargs", help="Chat template options as JSON, e.g. '{\"enable_thinking\": false}'."),
]

DeadlineS = Annotated[
    float | None,
    typer.Option(
        "--deadline-s",
        min=1.0,
        help="Seconds one request to a service may take, e.g. for a large model on a CPU. [default: the service's]",
        show_default=False,
    ),
]

TARGET_DEFAULT = DEFAULT_TARGET_URL
DRAFTER_DEFAULT = DEFAULT_DRAFTER_URL


def parse_template_kwargs(text: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RequestError: not JSON, or not an object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"--template-kwargs {text!r}: not JSON ({error.msg})") from error
    if not isinstance(value, dict):
        raise RequestError(f"--template-kwargs {text!r}: expected an object, e.g. {{}}")
    return value
