"""References from any OpenAI-compatible server: vLLM, SGLang's OpenAI routes, llama.cpp, transformers serve, ...

The dialect is found once, with requests of one token: token ids in and out where the server can (`/v1/completions` with
a list of ids and `return_token_ids`), otherwise chat, whose text is turned into ids by the target service and checked
by a round trip.
"""

from threading import Lock
from typing import Any

from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai_answer import OpenAIAnswer, read_answer
from tauscope_client.references.openai_dialect import Dialect, body_of, dialects, route_of
from tauscope_client.references.openai_facts import ask_facts
from tauscope_client.references.source import Completion, TokenBridge, Turn
from tauscope_client.references.vllm_counters import SpecCounters, read_counters, served_between
from tauscope_wire.errors import ErrorCode, MismatchError, NotFoundError, RequestError, UnavailableError

__all__ = ["OpenAISource"]


class OpenAISource:
    """A running OpenAI-compatible server."""

    name = "openai"

    def __init__(self, http: EngineHttp, bridge: TokenBridge, *, model: str | None = None) -> None:
        """Ask `http` for completions of `model` (None: the only one it serves)."""
        self._http = http
        self._bridge = bridge
        self._model = model
        self._facts: dict[str, Any] | None = None
        self._dialect: Dialect | None = None
        self._lock = Lock()

    def facts(self) -> dict[str, Any]:
        """Which server, version and model."""
        with self._lock:
            if self._facts is None:
                self._facts = ask_facts(self._http, model=self._model)
            return self._facts

    def complete(self, turn: Turn) -> Completion:
        """Fetch one completion in the best dialect the server speaks."""
        facts = self.facts()
        kind, model = facts["kind"], facts["model"]
        dialect = self._find_dialect(turn, kind, model)
        body = body_of(
            dialect, turn, kind=kind, model=model, max_tokens=turn.max_new_tokens, stop_ids=turn.stop_token_ids
        )
        before = self._counters()
        answer = read_answer(self._http.post(route_of(dialect, turn), body), self._http.url)
        after = self._counters() if before is not None else None
        response_ids, drift = self._response_ids(answer, turn)
        tail: list[int] = []
        if turn.tail_tokens and dialect == "ids+options" and answer.ids and not drift:
            longer = Turn(
                id=turn.id,
                prompt_ids=[*turn.prompt_ids, *response_ids],
                max_new_tokens=turn.tail_tokens,
                stop_token_ids=(),
            )
            tail_body = body_of(
                dialect, longer, kind=kind, model=model, max_tokens=turn.tail_tokens, stop_ids=(), ignore_eos=True
            )
            tail = read_answer(self._http.post("/v1/completions", tail_body), self._http.url).ids or []
        served = None
        if before is not None and after is not None:
            served = served_between(before, after, completion_tokens=len(response_ids))
        return Completion(
            response_ids=response_ids,
            finish_reason=answer.finish_reason,
            tail_ids=tail,
            drift=drift,
            served=served,
            cached_tokens=answer.num_cached_tokens,
        )

    def flush_cache(self) -> bool:
        """Empty the prefix cache by vLLM's route (in its development mode only) or SGLang's; whether it did."""
        return self._http.trigger("/reset_prefix_cache") or self._http.trigger("/flush_cache")

    def _counters(self) -> SpecCounters | None:
        """Counters of a server that is known to speculate; nothing is asked of others."""
        if not self.facts()["speculating"]:
            return None
        return read_counters(self._http.find_text("/metrics") or "")

    def _response_ids(self, answer: OpenAIAnswer, turn: Turn) -> tuple[list[int], str]:
        drift: list[str] = []
        if answer.prompt_ids is not None and list(turn.prompt_ids) != answer.prompt_ids:
            drift.append("the server rendered the prompt to other ids than the target service")
        elif answer.num_prompt_tokens not in {None, len(turn.prompt_ids)} and answer.prompt_ids is None:
            drift.append(
                f"the server counted {answer.num_prompt_tokens} prompt tokens, "
                f"the target service {len(turn.prompt_ids)}"
            )
        if answer.ids is not None:
            ids = list(answer.ids)
        else:
            ids = self._bridge.encode(answer.text)
            if self._bridge.decode(ids) != answer.text:
                drift.append("the server gave text only, and it does not round-trip through the tokenizer")
        if answer.finish_reason == "stop" and turn.stop_token_ids and (not ids or ids[-1] not in turn.stop_token_ids):
            # Chat text ends without its stop id; the first stop id is the one chat templates close a turn with.
            ids.append(answer.stop_id if answer.stop_id is not None else turn.stop_token_ids[0])
        if answer.ids is None and not _counts_fit(answer, len(ids)):
            drift.append(
                f"the server sampled {answer.num_completion_tokens} tokens and its text is {len(ids)}: it was sampled "
                "in other pieces than the tokenizer makes of it"
            )
        return ids, "; ".join(drift)

    def _find_dialect(self, turn: Turn, kind: str, model: str) -> Dialect:
        with self._lock:
            if self._dialect is not None:
                return self._dialect
            refusals: list[str] = []
            for dialect in dialects(kind, turn):
                body = body_of(dialect, turn, kind=kind, model=model, max_tokens=1, stop_ids=turn.stop_token_ids)
                try:
                    answer = read_answer(self._http.post(route_of(dialect, turn), body), self._http.url)
                except (RequestError, NotFoundError, UnavailableError) as error:
                    # A 500 that stays can mean a request of the wrong form; other failures of a server are failures.
                    if error.code is ErrorCode.PROMPT_TOO_LONG or error.details.get("status", 500) != 500:
                        raise
                    refusals.append(f"{dialect}: {error.message}")
                    continue
                # A server may take a list of ids as a batch of prompts, or ignore what it does not know.
                if dialect.startswith("ids") and answer.num_prompt_tokens not in {None, len(turn.prompt_ids)}:
                    refusals.append(
                        f"{dialect}: {answer.num_prompt_tokens} prompt tokens for {len(turn.prompt_ids)} ids"
                    )
                    continue
                self._dialect = dialect
                self._known()["dialect"] = dialect
                self._known()["returns_ids"] = answer.ids is not None
                return dialect
            raise MismatchError(
                f"{self._http.url} took neither token ids nor chat messages: " + " | ".join(refusals),
                ErrorCode.UNEXPECTED_ANSWER,
            )

    def _known(self) -> dict[str, Any]:
        if self._facts is None:
            self._facts = {}
        return self._facts


def _counts_fit(answer: OpenAIAnswer, num_ids: int) -> bool:
    """Whether the ids made from a text can be the sampled ones: a text can round-trip and still have been other ids.

    Some servers leave the stop id out of their count.
    """
    counted = answer.num_completion_tokens
    return counted is None or counted == num_ids or (answer.finish_reason == "stop" and counted == num_ids - 1)
