"""References from SGLang's own `/generate`: token ids in, token ids out.

Every sampling field is sent: what is left out is filled from the model's `generation_config.json`
(`--sampling-defaults model`), and greedy is not greedy then.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any

from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.record import FinishReason, Served
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.references.source import Completion, TokenBridge, Turn
from tauscope_wire.errors import ErrorCode, InternalError, MismatchError

__all__ = ["SglangSource"]

_MODEL_ROUTES = ("/model_info", "/get_model_info")
_SERVER_ROUTES = ("/server_info", "/get_server_info")
_SERVER_FACTS = (
    "version",
    "revision",
    "dtype",
    "quantization",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "enable_deterministic_inference",
    "disable_radix_cache",
    "attention_backend",
    "tp_size",
    "kv_cache_dtype",
)


class SglangSource:
    """A running SGLang server."""

    name = "sglang"

    def __init__(self, http: EngineHttp, bridge: TokenBridge, *, model: str | None = None) -> None:
        """Ask `http` for completions; `bridge` serves only servers too old to return ids.

        Args:
            http: the server.
            bridge: turns text into ids.
            model: the name or path it must serve; None: whatever it serves.
        """
        self._http = http
        self._bridge = bridge
        self._model = model
        self._facts: dict[str, Any] | None = None
        self._lock = Lock()

    def facts(self) -> dict[str, Any]:
        """Model, version and options; what the server keeps for administrators is simply missing."""
        with self._lock:
            if self._facts is None:
                self._facts = self._ask_facts()
            return self._facts

    def complete(self, turn: Turn) -> Completion:
        """Fetch one completion, and its tail by a second request when one is wanted."""
        answer = self._generate(
            turn.prompt_ids, turn.max_new_tokens, turn.stop_token_ids, ignore_eos=False, choice=turn.sampling
        )
        response_ids, drift = self._ids(answer)
        meta = _meta(answer)
        reason, matched = _finish(meta)
        if reason == "stop" and matched is not None and (not response_ids or response_ids[-1] != matched):
            response_ids.append(matched)  # servers that trim the stop id still name it
        tail: list[int] = []
        if turn.tail_tokens and response_ids and not drift:
            context = [*turn.prompt_ids, *response_ids]
            tail, tail_drift = self._ids(self._generate(context, turn.tail_tokens, (), ignore_eos=True))
            tail = [] if tail_drift else tail
        return Completion(
            response_ids=response_ids,
            finish_reason=reason,
            tail_ids=tail,
            drift=drift,
            served=_served(meta),
            cached_tokens=cached if type(cached := meta.get("cached_tokens")) is int else None,
        )

    def flush_cache(self) -> bool:
        """Empty the prefix cache, which SGLang refuses while others wait for answers; whether it did."""
        return self._http.trigger("/flush_cache")

    def _generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        *,
        ignore_eos: bool,
        choice: TextSampling = GREEDY,
    ) -> dict[str, Any]:
        sampling: dict[str, Any] = {
            "temperature": choice.temperature,
            "top_p": choice.top_p,
            "top_k": choice.top_k or -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "max_new_tokens": max_new_tokens,
            "n": 1,
            "ignore_eos": ignore_eos,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
        if not choice.is_greedy:
            sampling["sampling_seed"] = choice.seed  # honoured by servers in deterministic mode
        if stop_ids:
            sampling["stop_token_ids"] = list(stop_ids)
        body = {"input_ids": list(input_ids), "sampling_params": sampling, "stream": False}
        return self._http.post("/generate", body)

    def _ids(self, answer: dict[str, Any]) -> tuple[list[int], str]:
        ids = answer.get("output_ids")
        if not isinstance(ids, list):
            ids = _meta(answer).get("output_ids")
        if isinstance(ids, list) and all(type(item) is int for item in ids):
            return list(ids), ""
        text = answer.get("text")
        if not isinstance(text, str):
            raise InternalError(
                f"{self._http.url}/generate: neither output_ids nor text in the answer", ErrorCode.UNEXPECTED_ANSWER
            )
        encoded = self._bridge.encode(text)
        same = self._bridge.decode(encoded) == text
        return encoded, "" if same else "the server gave text only, and it does not round-trip through the tokenizer"

    def _ask_facts(self) -> dict[str, Any]:
        model = next((found for route in _MODEL_ROUTES if (found := self._http.find(route, needs_key=True))), None)
        if model is None or "model_path" not in model:
            raise MismatchError(
                f"the server at {self._http.url} is not SGLang (no /get_model_info); "
                f"for another server say --reference openai={self._http.url}",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        names = [str(model[key]) for key in ("served_model_name", "model_path") if model.get(key)]
        if self._model is not None and self._model not in names:
            # It would answer under any name.
            raise MismatchError(
                f"{self._http.url} does not serve {self._model!r}; it serves {', '.join(dict.fromkeys(names))}",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        server = next((found for route in _SERVER_ROUTES if (found := self._http.find(route))), None) or {}
        facts: dict[str, Any] = {"kind": "sglang", "model": model["model_path"]}
        facts |= {key: model[key] for key in ("weight_version", "model_type") if model.get(key) is not None}
        facts |= {key: server[key] for key in _SERVER_FACTS if server.get(key) is not None}
        facts["speculating"] = bool(server["speculative_algorithm"]) if "speculative_algorithm" in server else None
        facts["deterministic"] = server.get("enable_deterministic_inference")
        return facts


def _meta(answer: dict[str, Any]) -> dict[str, Any]:
    meta = answer.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def _finish(meta: dict[str, Any]) -> tuple[FinishReason, int | None]:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    matched = reason.get("matched") if isinstance(reason, dict) else None
    if kind == "stop":
        return "stop", matched if type(matched) is int else None
    return ("length", None) if kind == "length" else ("other", None)


def _served(meta: dict[str, Any]) -> Served | None:
    steps = meta.get("spec_verify_ct")
    tokens = meta.get("completion_tokens")
    if type(steps) is not int or type(tokens) is not int or steps < 1:
        return None
    length = meta.get("spec_accept_length")
    histogram = meta.get("spec_accept_histogram")
    is_counts = isinstance(histogram, list) and all(type(item) is int for item in histogram)
    return Served(
        completion_tokens=tokens,
        verify_steps=steps,
        accept_length=float(length) if isinstance(length, (int, float)) else None,
        histogram=histogram if is_counts else None,
    )
