"""Which OpenAI-compatible server this is: what its open routes say, nothing guessed."""

from typing import Any

from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.vllm_counters import read_counters
from tauscope_wire.errors import ErrorCode, MismatchError

__all__ = ["ask_facts"]


def ask_facts(http: EngineHttp, *, model: str | None = None) -> dict[str, Any]:
    """Kind, version and model; `speculating` and `deterministic` are None where the server does not tell.

    Args:
        http: the server.
        model: the one wanted; None: the only one it serves.

    Raises:
        MismatchError: no such model, several to choose from, or not such a server.
        TauscopeError: it cannot be reached, or refuses.
    """
    listing = http.find("/v1/models", needs_key=True)
    data = listing.get("data") if listing else None
    if not isinstance(data, list):
        raise MismatchError(
            f"the server at {http.url} has no /v1/models: it is not OpenAI-compatible", ErrorCode.UNEXPECTED_ANSWER
        )
    cards = {str(card.get("id")): card for card in data if isinstance(card, dict) and card.get("id")}
    chosen = model if model is not None else next(iter(cards), None)
    if model is None and len(cards) != 1:
        raise MismatchError(
            f"{http.url} serves {len(cards)} models ({', '.join(sorted(cards)[:8])}): say which with --reference-model",
            ErrorCode.UNEXPECTED_ANSWER,
        )
    if chosen is None or (cards and chosen not in cards):
        raise MismatchError(
            f"{http.url} does not serve {chosen!r}; it serves {', '.join(sorted(cards)[:8])}",
            ErrorCode.UNEXPECTED_ANSWER,
        )
    card = cards.get(chosen, {})
    version = http.find("/version") or {}
    facts: dict[str, Any] = {"kind": _kind(card, version), "model": chosen}
    facts |= {key: card[key] for key in ("root", "max_model_len", "owned_by") if card.get(key) is not None}
    if version.get("version"):
        facts["version"] = version["version"]
    if facts["kind"] == "transformers" and "@" in chosen:
        facts["revision"] = chosen.rpartition("@")[2]  # `transformers serve` names models of a hub so
    if facts["kind"] == "openai-compatible":
        facts |= _llama_cpp_python(http)
    # vLLM has these counters on /metrics if and only if it speculates.
    metrics = http.find_text("/metrics") if facts["kind"] == "vllm" else None
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


def _llama_cpp_python(http: EngineHttp) -> dict[str, Any]:
    """llama-cpp-python says `owned_by: me` and has no `/version`; the title of its API description names it."""
    described = http.find("/openapi.json") or {}
    info = described.get("info")
    if not isinstance(info, dict) or "llama.cpp" not in str(info.get("title", "")).lower():
        return {}
    return {"kind": "llama-cpp-python", "version": info.get("version")}
