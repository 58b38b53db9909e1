"""`--set KEY=VALUE`: what the files of a checkpoint do not say, for commands that read one checkpoint."""

from typing import Annotated

import typer

from tauscope_drafter.checkpoint.options import LoadOptions, parse_drafter

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="What the files do not say, repeatable: block_size=16, taps=1:16:31, mask_token_id=.., rope_theta=..",
    ),
]


def options_of(settings: list[str] | None) -> LoadOptions:
    """The options; see `checkpoint.options`."""
    return parse_drafter(",".join(["checkpoint=-", *(settings or [])]))[2]
