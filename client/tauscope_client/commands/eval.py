"""`tauscope eval`."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tauscope_client.addresses import Addresses
from tauscope_client.commands.options import (
    DRAFTER_DEFAULT,
    TARGET_DEFAULT,
    DeadlineS,
    DrafterUrl,
    FlushReferences,
    Key,
    SampleSeed,
    SampleTopK,
    SampleTopP,
    TargetUrl,
    Temperature,
    TemplateKwargs,
    TrainedThinking,
    parse_template_kwargs,
    text_sampling,
)
from tauscope_client.drafter import DrafterClient
from tauscope_client.evaluate import EvalSettings, evaluate
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.prompts import find_prompts, load_prompts
from tauscope_client.references.choice import REFERENCE_HELP, parse_reference
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.sampling import TextSampling
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stored import StoredSource
from tauscope_client.terminal import TerminalProgress, show_results, stdout_console
from tauscope_client.tree_rows import parse_budgets
from tauscope_wire.errors import ErrorCode, NotFoundError, RetryableError, UnreachableError

__all__ = ["evaluate_command"]

DEFAULT_MAX_NEW_TOKENS = 512
DEFAULT_REPEATS = 2
DEFAULT_TAIL_TOKENS = 16
"""One block of the usual drafters: what the unclipped tau needs past the end."""


class DtypeName(StrEnum):
    """Element types of hidden states."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def evaluate_command(
    prompts: Annotated[
        str,
        typer.Argument(help="Prompts: JSONL (ours, ShareGPT, turns), JSON array, .txt, bundled:coding, bundled:mixed."),
    ],
    *,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", help="Name of a loaded drafter; repeatable. [default: all that are loaded]"),
    ] = None,
    reference: Annotated[str, typer.Option("--reference", "-r", help=REFERENCE_HELP)] = "target",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Run folder; an existing one is continued. [default: runs/<date>-<prompts>]",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Length limit of the answers. [default: 512; with file=, as stored]", show_default=False
        ),
    ] = None,
    tail_tokens: Annotated[
        int, typer.Option(min=0, max=256, help="Greedy tokens fetched past the end, for the unclipped tau.")
    ] = DEFAULT_TAIL_TOKENS,
    top_k: Annotated[int, typer.Option(min=1, max=1024, help="Candidates kept of each draft row.")] = 8,
    dtype: Annotated[
        DtypeName, typer.Option(help="Hidden states between the services; float32 for exact comparisons.")
    ] = DtypeName.BFLOAT16,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Texts in flight at the two services.")] = 2,
    tree_budgets: Annotated[
        str, typer.Option(help="DDTree budgets to walk with: some of 16,32,64,128,256,512,1024, or none.")
    ] = "16,32,64",
    reference_concurrency: Annotated[
        int, typer.Option(min=1, max=64, help="Answers in flight; above 1 greedy text may change under load.")
    ] = 1,
    check_references: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="References to ask for twice again, does the server repeat itself? [default: 2 of another server]",
            show_default=False,
        ),
    ] = None,
    flush_references: FlushReferences = False,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Turns of a conversation that count. [default: all]", show_default=False)
    ] = None,
    template_kwargs: TemplateKwargs = "{}",
    trained_thinking: TrainedThinking = None,
    temperature: Temperature = None,
    sample_top_k: SampleTopK = 0,
    sample_top_p: SampleTopP = 1.0,
    seed: SampleSeed = 0,
    reference_model: Annotated[
        str | None, typer.Option(help="Model name at an openai= server that serves several.", show_default=False)
    ] = None,
    reference_key: Annotated[
        str | None,
        typer.Option(envvar="TAUSCOPE_REFERENCE_KEY", help="API key of the reference server.", show_default=False),
    ] = None,
    deadline_s: DeadlineS = None,
    target: TargetUrl = TARGET_DEFAULT,
    drafter_url: DrafterUrl = DRAFTER_DEFAULT,
    key: Key = None,
) -> None:
    """Measure how good drafters are: tau over the target's own greedy answers (expected tau over sampled ones)."""
    file = load_prompts(find_prompts(prompts))
    budgets = parse_budgets(tree_budgets)
    choice = parse_reference(reference, model=reference_model, key=reference_key)
    folder = out if out is not None else Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{file.path.stem}"
    console = stdout_console()
    with Addresses(target, drafter_url, key).open_both() as (target_client, drafter_client):
        target_client.info()  # a wrong address is told before a reference server is asked anything
        with choice.open(target_client, deadline_s=deadline_s) as source, TerminalProgress() as progress:
            limit = max_new_tokens
            if limit is None:
                limit = source.max_new_tokens() if isinstance(source, StoredSource) else DEFAULT_MAX_NEW_TOKENS
            sampling = text_sampling(source, temperature, sample_top_k, sample_top_p, seed)
            settings = EvalSettings(
                drafters=tuple(dict.fromkeys(drafter or loaded_drafters(drafter_client))),
                references=ReferencePlan(
                    max_new_tokens=limit,
                    tail_tokens=tail_tokens,
                    template_kwargs=parse_template_kwargs(template_kwargs),
                    max_turns=max_turns,
                    concurrency=reference_concurrency,
                    sampling=sampling,
                ),
                top_k=top_k,
                dtype=dtype.value,
                concurrency=concurrency,
                tree_budgets=budgets,
                deadline_s=deadline_s,
                trained_thinking=None if trained_thinking is None else trained_thinking.value,
                num_repeats=repeats_of(source, check_references, sampling),
                may_flush=flush_references,
                passed={
                    "prompts": prompts,
                    "drafters": list(drafter or []),
                    "reference": reference,
                    "max_new_tokens": max_new_tokens,
                    "target": target,
                    "drafter_url": drafter_url,
                },
            )
            try:
                outcome = evaluate(
                    settings,
                    file,
                    folder,
                    target=target_client,
                    drafter=drafter_client,
                    source=source,
                    progress=progress,
                )
            except (UnreachableError, RetryableError) as error:
                if (folder / "manifest.json").exists():
                    error.message += f"; what was finished is kept: go on with --out {folder}"
                raise
    show_results(outcome.results, console)
    console.print(f"run folder: {outcome.path}", soft_wrap=True, markup=False)
    if outcome.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


def loaded_drafters(drafter: DrafterClient) -> list[str]:
    """Every drafter that is loaded.

    Raises:
        NotFoundError: none is.
    """
    names = [card.name for card in drafter.info().drafters]
    if not names:
        raise NotFoundError(
            f"no drafter is loaded at {drafter.url}: start the service with --drafter NAME=PATH, or POST /drafters",
            ErrorCode.DRAFTER_UNKNOWN,
        )
    return names


def repeats_of(source: ReferenceSource, asked: int | None, sampling: TextSampling) -> int:
    """References to ask for again: what was asked for, else a few of a server; a file cannot answer otherwise.

    Sampled answers are not asked for again by default: few servers promise to repeat them, seed or not.
    """
    if isinstance(source, StoredSource):
        return 0
    if asked is not None:
        return asked
    return 0 if isinstance(source, EmbeddedSource) or not sampling.is_greedy else DEFAULT_REPEATS


evaluate_command.__doc__ = f"{evaluate_command.__doc__}\n\n{EXIT_CODES_HELP}"
