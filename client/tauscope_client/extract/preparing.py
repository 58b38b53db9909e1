"""Turns the texts into ids and loss masks: the size of the whole is known before the first state is asked for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tauscope_client.extract.fleet import Fleet
from tauscope_client.extract.masks import answered_spans
from tauscope_client.extract.sample import Sample, spans_of
from tauscope_client.extract.samples import END_LINE, Refused, SampleTable, refused_line
from tauscope_client.extract.settings import ExtractSettings
from tauscope_client.extract.texts import Text, TextError, read_texts
from tauscope_client.references.retries import Retries
from tauscope_client.runs.files import JsonLines
from tauscope_wire.errors import RequestError, TooLargeError
from tauscope_wire.messages import Message, TokenizeRequest

__all__ = ["prepare_samples"]

WINDOW = 64
"""Texts in work at a time; a kill costs no more than these."""


def prepare_samples(
    texts: Path,
    path: Path,
    settings: ExtractSettings,
    *,
    fleet: Fleet,
    retries: Retries,
    on_done: Callable[[int], None],
) -> SampleTable:
    """Write `samples.jsonl`, or go on with it.

    Args:
        texts: the data set.
        path: the file to write.
        settings: of the extraction.
        fleet: renders conversations.
        retries: how to try again.
        on_done: told how many texts are done.

    Raises:
        PromptFileError: the data set cannot be read.
        TauscopeError: a service that fails for every text.
    """
    lines = JsonLines(path)
    try:
        table = SampleTable(path)
        if table.is_complete:
            return table
        row, done = len(table), table.num_lines
        rest = islice(read_texts(texts), done, None)
        with ThreadPoolExecutor(max_workers=settings.concurrency) as pool:
            for window in _windows(rest):
                made = pool.map(lambda entry: _prepare(entry[1], entry[2], settings, fleet, retries), window)
                written = []
                for one in made:
                    if isinstance(one, Refused):
                        written.append(refused_line(one))
                    else:
                        written.append(replace(one, row=row).to_line())
                        row += 1
                lines.append("\n".join(written))  # one flush for all of them
                done += len(written)
                on_done(done)
        lines.append(END_LINE)
    finally:
        lines.close()
    return SampleTable(path)


Entry = tuple[int, str, Text | TextError]


def _windows(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    remaining = iter(entries)
    while window := list(islice(remaining, WINDOW)):
        yield window


def _prepare(
    name: str, text: Text | TextError, settings: ExtractSettings, fleet: Fleet, retries: Retries
) -> Sample | Refused:
    if isinstance(text, TextError):
        return Refused(name, str(text))
    try:
        sample = _sample(text, settings, fleet, retries)
    except (RequestError, TooLargeError) as error:  # the same today and tomorrow; anything else ends the run
        return Refused(name, error.message)
    if settings.max_length is not None:
        sample = sample.cut(settings.max_length)
    reason = _reason_against(sample, settings, fleet)
    return sample if reason is None else Refused(name, reason)


def _sample(text: Text, settings: ExtractSettings, fleet: Fleet, retries: Retries) -> Sample:
    def tokenize(request: TokenizeRequest) -> list[int]:
        def ask() -> list[int]:
            with fleet.take(0) as client:
                return client.tokenize(request).token_ids

        return retries.run(ask)

    def render(messages: Sequence[Message], asks: bool) -> Sequence[int]:
        kwargs = dict(settings.template_kwargs)
        return tokenize(TokenizeRequest(messages=list(messages), template_kwargs=kwargs, add_generation_prompt=asks))

    spans: tuple[tuple[int, int], ...]
    if text.token_ids is not None:
        ids: Sequence[int] = text.token_ids
        spans = spans_of(text.loss_mask or ())
        spans = spans[-1:] if settings.loss == "last" else spans
    elif text.messages is not None:
        ids = render(text.messages, False)
        stops = fleet.info.model.stop_token_ids
        spans = answered_spans(text.messages, ids, render, loss=settings.loss, stop_ids=stops)
    else:
        ids, spans = tokenize(TokenizeRequest(text=text.text)), ()
    if settings.loss == "all":
        spans = ((0, len(ids)),)
    return Sample(id=text.id, row=-1, token_ids=tuple(ids), spans=spans)


def _reason_against(sample: Sample, settings: ExtractSettings, fleet: Fleet) -> str | None:
    if not sample.num_tokens:
        return "no tokens"
    if sample.num_tokens > fleet.max_tokens:
        return f"{sample.num_tokens} tokens: the service takes {fleet.max_tokens}; cut texts with --max-length"
    model = fleet.info.model
    num_planes = len(set(settings.planes(model.num_layers)))
    answer_bytes = sample.num_tokens * num_planes * settings.plane_bytes(model.hidden_size)
    if fleet.max_answer_bytes and answer_bytes > fleet.max_answer_bytes:
        return (
            f"{sample.num_tokens} tokens make an answer of {answer_bytes} bytes: the service gives "
            f"{fleet.max_answer_bytes}; cut texts with --max-length, or ask for fewer layers"
        )
    vocab_size = model.vocab_size
    if max(sample.token_ids) >= vocab_size:
        return f"id {max(sample.token_ids)}: the model has {vocab_size} ids"
    longest = max((stop - start for start, stop in sample.spans), default=0)
    if longest < settings.layout.min_span:
        return (
            f"{longest} tokens in a row count for the loss: the layout {settings.layout.name} needs "
            f"{settings.layout.min_span}; give texts with answers, or use --loss all"
        )
    return None
