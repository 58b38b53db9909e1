"""References from any OpenAI-compatible server: vLLM, SGLang's OpenAI routes, llama.cpp, transformers serve, ...

The dialect is found once, with requests of one token: token ids in and out where the server can (`/v1/completions` with
a list of ids and `return_token_ids`), otherwise chat, whose text is turned into ids by the target service and checked
by a round trip.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, Literal

from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai_answer import OpenAIAnswer, read_answer
from tauscope_client.references.source import Completion, TokenBridge, Turn
from tauscope_client.references.vllm_counters import SpecCounters, read_counters, served_between
from tauscope_wire.errors import ErrorCode, MismatchError, NotFoundError, RequestError

__all__ = ["OpenAISource"]

Dialect = Literal["ids+options", "ids", "chat+options", "chat"]

# Sampling fields of the OpenAI protocol, which every server takes.
_PLAIN: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "n": 1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "stream": False,
}
# Fields of vLLM and SGLang: without them the model's generation_config.json fills in (top_k 20, a repetition penalty).
_OPTIONS: dict[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "skip_special_tokens": False,
    "return_token_ids": True,
}
_ORDER: tuple[Dialect, ...] = ("ids+options", "ids", "chat+options", "chat")


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
                self._facts = self._ask_facts()
            return self._facts

    def complete(self, turn: Turn) -> Completion:
        """Fetch one completion in the best dialect the server speaks."""
        model = self.facts()["model"]
        dialect = self._find_dialect(turn, model)
        body = self._body(dialect, model, turn, turn.max_new_tokens, turn.stop_token_ids, ignore_eos=False)
        before = self._counters()
        answer = read_answer(self._http.post(_route(dialect, turn), body), self._http.url)
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
            tail_body = self._body(dialect, model, longer, turn.tail_tokens, (), ignore_eos=True)
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
        )

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

    def _find_dialect(self, turn: Turn, model: str) -> Dialect:
        with self._lock:
            if self._dialect is not None:
                return self._dialect
            refusals: list[str] = []
            for dialect in _ORDER:
                body = self._body(dialect, model, turn, 1, turn.stop_token_ids, ignore_eos=False)
                try:
                    answer = read_answer(self._http.post(_route(dialect, turn), body), self._http.url)
                except (RequestError, NotFoundError) as error:
                    if error.code is ErrorCode.PROMPT_TOO_LONG:
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

    def _body(
        self,
        dialect: Dialect,
        model: str,
        turn: Turn,
        max_tokens: int,
        stop_ids: Sequence[int],
        *,
        ignore_eos: bool,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, **_PLAIN}
        if dialect.startswith("ids"):
            body["prompt"] = list(turn.prompt_ids)
        elif turn.messages is None:
            body["prompt"] = turn.text
        else:
            body["messages"] = [message.model_dump() for message in turn.messages]
        body |= {"temperature": turn.sampling.temperature, "top_p": turn.sampling.top_p}
        if not turn.sampling.is_greedy:
            body["seed"] = turn.sampling.seed
        if dialect.endswith("options"):
            body |= _OPTIONS | {"ignore_eos": ignore_eos, "top_k": turn.sampling.top_k or -1}
            if stop_ids:
                body["stop_token_ids"] = list(stop_ids)
            if turn.messages is not None and dialect.startswith("chat"):
                body["chat_template_kwargs"] = turn.template_kwargs
        return body

    def _ask_facts(self) -> dict[str, Any]:
        listing = self._http.find("/v1/models", needs_key=True)
        data = listing.get("data") if listing else None
        if not isinstance(data, list):
            raise MismatchError(
                f"the server at {self._http.url} has no /v1/models: it is not OpenAI-compatible",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        cards = {str(card.get("id")): card for card in data if isinstance(card, dict) and card.get("id")}
        model = self._model if self._model is not None else next(iter(cards), None)
        if self._model is None and len(cards) != 1:
            raise MismatchError(
                f"{self._http.url} serves {len(cards)} models ({', '.join(sorted(cards)[:8])}): "
                "say which with --reference-model",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        if model is None or (cards and model not in cards):
            raise MismatchError(
                f"{self._http.url} does not serve {model!r}; it serves {', '.join(sorted(cards)[:8])}",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        card = cards.get(model, {})
        version = self._http.find("/version") or {}
        facts: dict[str, Any] = {"kind": _kind(card, version), "model": model}
        facts |= {key: card[key] for key in ("root", "max_model_len", "owned_by") if card.get(key) is not None}
        if version.get("version"):
            facts["version"] = version["version"]
        # vLLM has these counters on /metrics if and only if it speculates.
        metrics = self._http.find_text("/metrics") if facts["kind"] == "vllm" else None
        facts["speculating"] = None if metrics is None else read_counters(metrics) is not None
        facts["deterministic"] = None
        return facts


def _kind(card: dict[str, Any], version: dict[str, Any]) -> str:
    owner = str(card.get("owned_by", "")).lower()
    for word, kind in (
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("llama", "llama.cpp"),
        ("transformers", "transformers"),
    ):
        if word in owner:
            return kind
    if owner == "local" and isinstance(card.get("status"), dict):
        return "transformers"  # `transformers serve` 5: no version, no name, a path as id
    return "vllm" if version.get("version") else "openai-compatible"


def _counts_fit(answer: OpenAIAnswer, num_ids: int) -> bool:
    """Whether the ids made from a text can be the sampled ones: a text can round-trip and still have been other ids.

    Some servers leave the stop id out of their count.
    """
    counted = answer.num_completion_tokens
    return counted is None or counted == num_ids or (answer.finish_reason == "stop" and counted == num_ids - 1)


def _route(dialect: Dialect, turn: Turn) -> str:
    is_chat = dialect.startswith("chat") and turn.messages is not None
    return "/v1/chat/completions" if is_chat else "/v1/completions"
