"""`tauscope hidden`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from tauscope_client.addresses import DEFAULT_DRAFTER_URL, Addresses
from tauscope_client.commands.options import TARGET_DEFAULT, Key, TargetUrl, TemplateKwargs, parse_template_kwargs
from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.hidden_files import write_states
from tauscope_client.prompts import PromptFileError, PromptRecord, load_prompts
from tauscope_client.terminal import stdout_console
from tauscope_wire.errors import RequestError
from tauscope_wire.messages import HiddenRequest, Message

__all__ = ["hidden_command"]


class ConventionName(StrEnum):
    """Layer-id conventions."""

    OUTPUT = "output"
    TUPLE = "tuple"


class DtypeName(StrEnum):
    """Element types."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class NpzFormName(StrEnum):
    """How bfloat16 goes into npz."""

    FLOAT32 = "float32"
    UINT16 = "uint16"


def hidden_command(
    *,
    layers: Annotated[str, typer.Option("--layers", "-l", help="Layer ids, e.g. 1,16,31; -1 is the embedding output.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .safetensors (keeps bfloat16) or .npz.")],
    text: Annotated[str | None, typer.Option(help="Raw text, no chat template.")] = None,
    user: Annotated[str | None, typer.Option(help="One user message, rendered by the chat template.")] = None,
    token_ids: Annotated[str | None, typer.Option(help="Token ids, e.g. 504,2,3.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A prompts file; say which prompt with --id.")] = None,
    prompt_id: Annotated[str | None, typer.Option("--id", help="Prompt of --prompts. [default: the first]")] = None,
    convention: Annotated[
        ConventionName, typer.Option(help="output: id k is the output of decoder layer k; tuple: k + 1 is.")
    ] = ConventionName.OUTPUT,
    final_norm: Annotated[bool, typer.Option("--final-norm", help="Also the last layer after the final norm.")] = False,
    positions: Annotated[str | None, typer.Option(help="start:stop, or last. [default: all]")] = None,
    dtype: Annotated[DtypeName, typer.Option(help="Element type of the answer.")] = DtypeName.BFLOAT16,
    npz_as: Annotated[
        NpzFormName, typer.Option(help="npz knows no bfloat16: float32 (same values), or the raw bits as uint16.")
    ] = NpzFormName.FLOAT32,
    template_kwargs: TemplateKwargs = "{}",
    target: TargetUrl = TARGET_DEFAULT,
    key: Key = None,
) -> None:
    """Fetch the hidden states of one prompt into a file."""
    if out.suffix not in {".safetensors", ".npz"}:
        raise RequestError(f"--out {out}: the name must end in .safetensors or .npz")
    given = [
        name
        for name, value in (("--text", text), ("--user", user), ("--token-ids", token_ids), ("--prompts", prompts))
        if value is not None
    ]
    if len(given) != 1:
        raise RequestError(
            f"give exactly one of --text, --user, --token-ids, --prompts; got {', '.join(given) or 'none'}"
        )
    kwargs = parse_template_kwargs(template_kwargs)
    messages: list[Message] | None = None
    if user is not None:
        messages = [Message(role="user", content=user)]
    if prompts is not None:
        record = _pick(prompts, prompt_id)
        messages, text = (None, record.text) if record.messages is None else (list(record.messages), None)
    for name, value in (("--text", text), ("--user", user)):
        if value is not None and not value.strip():
            raise RequestError(f"{name}: the prompt is empty")
    request = HiddenRequest(
        token_ids=None if token_ids is None else _integers("--token-ids", token_ids),
        text=text,
        messages=messages,
        template_kwargs=kwargs if messages is not None else {},
        layers=_integers("--layers", layers),
        convention=convention.value,
        final_norm=final_norm,
        positions=_positions(positions),
        dtype=dtype.value,
    )
    with Addresses(target, DEFAULT_DRAFTER_URL, key).open_target() as client:
        client.info()
        answer = client.hidden(request)
    write_states(out, answer, npz_form=npz_as.value)
    planes = ", ".join(str(plane) for plane in answer.planes)
    console = stdout_console()
    console.print(
        f"{out}: planes {planes} (canonical ids), {answer.positions[1] - answer.positions[0]} positions of "
        f"{answer.token_ids.size} tokens, hidden {answer.shape[2]}, {answer.dtype}, {answer.model.id}",
        markup=False,
        soft_wrap=True,
    )


hidden_command.__doc__ = f"{hidden_command.__doc__}\n\n{EXIT_CODES_HELP}"


def _pick(path: Path, prompt_id: str | None) -> PromptRecord:
    records = load_prompts(path).records
    if prompt_id is None:
        return records[0]
    for record in records:
        if record.id == prompt_id:
            return record
    raise PromptFileError(f"{path}: no prompt {prompt_id!r} in it")


def _integers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise RequestError(f"{name} {text!r}: expected integers with commas, e.g. 1,16,31") from error


def _positions(text: str | None) -> tuple[int, int] | Literal["last"] | None:
    if text is None:
        return None
    if text == "last":
        return "last"
    start, colon, stop = text.partition(":")
    try:
        if colon:
            return int(start), int(stop)
    except ValueError:
        pass
    raise RequestError(f"--positions {text!r}: expected start:stop (half-open), or last")
