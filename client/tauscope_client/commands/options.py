"""Options that several commands share, and reading them."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from tauscope_client.addresses import DEFAULT_DRAFTER_URL, DEFAULT_TARGET_URL
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stored import StoredSource
from tauscope_wire.errors import RequestError

__all__ = [
    "DeadlineS",
    "DrafterUrl",
    "FlushReferences",
    "Key",
    "OnOff",
    "SampleSeed",
    "SampleTopK",
    "SampleTopP",
    "TargetUrl",
    "Temperature",
    "TemplateKwargs",
    "TrainedThinking",
    "parse_template_kwargs",
    "text_sampling",
]

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

Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        max=100.0,
        help="Sample the answers; the headline then is an expectation. [default: 0, greedy; with file=, as stored]",
        show_default=False,
    ),
]
SampleTopK = Annotated[int, typer.Option("--sample-top-k", min=0, help="Sample answers from the k best; 0 for all.")]
SampleTopP = Annotated[
    float, typer.Option("--sample-top-p", min=0.01, max=1.0, help="Sample answers from the smallest set of this mass.")
]
SampleSeed = Annotated[int, typer.Option("--seed", min=0, help="Seed of sampled answers.")]


FlushReferences = Annotated[
    bool,
    typer.Option(
        "--flush-references",
        help="Let that check empty the reference server's prefix cache, so that answers are cold; a cost to all who "
        "use the server.",
    ),
]


class OnOff(StrEnum):
    """A switch."""

    ON = "on"
    OFF = "off"


TrainedThinking = Annotated[
    OnOff | None,
    typer.Option(
        help="Whether the drafters were trained on thinking, to be warned of answers that are unlike it. [default: as "
        "their files say]",
        show_default=False,
    ),
]

TARGET_DEFAULT = DEFAULT_TARGET_URL
DRAFTER_DEFAULT = DEFAULT_DRAFTER_URL


def text_sampling(
    source: ReferenceSource, temperature: float | None, top_k: int, top_p: float, seed: int
) -> TextSampling:
    """How answers are chosen: as asked for, else as stored ones were, else greedily.

    Raises:
        MismatchError: stored answers were chosen in several ways.
        RequestError: a value out of its range.
    """
    if temperature is None:
        return source.sampling() if isinstance(source, StoredSource) else GREEDY
    if temperature == 0:
        return GREEDY
    return TextSampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)


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
