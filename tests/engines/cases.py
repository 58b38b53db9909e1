"""What is recorded from each engine: one function a case, its docstring says what the case shows."""

import contextlib
from collections.abc import Callable
from threading import Thread

import httpx

from engines.asking import STOP_IDS, Asker

__all__ = ["Case"]

Case = Callable[[Asker], None]


# --- what the client's own sources ask --------------------------------------------------------------------------------


def greedy_stop(ask: Asker) -> None:
    """A short greedy answer that ends at a stop id; the id is in the answer or named by the server."""
    ask.complete("short-stop", max_new_tokens=64)


def greedy_length(ask: Asker) -> None:
    """A greedy answer cut at the length limit."""
    ask.complete("fibonacci", max_new_tokens=32)


def greedy_tail(ask: Asker) -> None:
    """The greedy text past its end, asked for by a second request that ignores the stop ids."""
    ask.complete("short-stop", max_new_tokens=64, tail_tokens=8)


def context_overflow(ask: Asker) -> None:
    """A prompt longer than the server's context."""
    ask.complete("fibonacci", max_new_tokens=32, repeat=130)


def template_switch(ask: Asker) -> None:
    """A chat template with a switch (`enable_thinking`), thrown by the client's own request."""
    ask.complete("short-stop", max_new_tokens=8, template_kwargs={"enable_thinking": False})


def limit_overflow(ask: Asker) -> None:
    """A prompt that fits and a length limit that does not."""
    ask.complete("fibonacci", max_new_tokens=4096)


def key_missing(ask: Asker) -> None:
    """A server with an API key, asked without one."""
    ask.complete("short-stop", max_new_tokens=8)


def key_given(ask: Asker) -> None:
    """A server with an API key, asked with it."""
    ask.complete("short-stop", max_new_tokens=8)


def queue_full(ask: Asker) -> None:
    """More requests at once than a server with a short queue takes: what it answers to the one too many."""

    def generate() -> None:
        ask.post("/generate", _generate(ask, 48))

    ask.prompt_ids("fibonacci")  # loads the tokenizer before the threads need it
    threads = [Thread(target=generate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [exchange for exchange in ask.transport.exchanges if exchange["answer"]["status"] != 200]
    ask.transport.exchanges[:] = refused[:1]


def admin_key_missing(ask: Asker) -> None:
    """A server with a second key for administrators (`--admin-api-key`), asked with the ordinary one."""
    ask.complete("short-stop", max_new_tokens=8)


# --- OpenAI routes ----------------------------------------------------------------------------------------------------


def wrong_model(ask: Asker) -> None:
    """A model that the server does not serve."""
    ask.post("/v1/completions", {"model": "no-such-model", "prompt": [504, 2, 3], "max_tokens": 2, "temperature": 0})


def completion_logprobs(ask: Asker) -> None:
    """Ids in and out with log-probs, the form of the reference in engines' own words."""
    ask.post(
        "/v1/completions",
        {
            "model": ask.server.model_name,
            "prompt": ask.prompt_ids("fibonacci"),
            "max_tokens": 6,
            "temperature": 0,
            "return_token_ids": True,
            "logprobs": 2,
        },
    )


def chat_greedy(ask: Asker) -> None:
    """A plain chat completion, as any OpenAI client sends it."""
    ask.post("/v1/chat/completions", _chat(ask, max_tokens=12))


def chat_token_ids(ask: Asker) -> None:
    """A chat completion with `return_token_ids`: which servers give the prompt's ids, the sampled ids, both."""
    ask.post("/v1/chat/completions", {**_chat(ask, max_tokens=12), "return_token_ids": True})


def chat_template_kwargs(ask: Asker) -> None:
    """Options of the chat template beside the messages."""
    ask.post("/v1/chat/completions", {**_chat(ask, max_tokens=4), "chat_template_kwargs": {"enable_thinking": False}})


def chat_logprobs(ask: Asker) -> None:
    """A chat completion with log-probs."""
    ask.post("/v1/chat/completions", {**_chat(ask, max_tokens=4), "logprobs": True, "top_logprobs": 2})


def chat_stop_text(ask: Asker) -> None:
    """A stop string in the answer: the text ends before it."""
    ask.post("/v1/chat/completions", {**_chat(ask, max_tokens=32), "stop": ["fibonacci"]})


def chat_stream(ask: Asker) -> None:
    """The same answer as server-sent events."""
    ask.post(
        "/v1/chat/completions",
        {**_chat(ask, max_tokens=6), "stream": True, "stream_options": {"include_usage": True}},
    )


def unknown_field(ask: Asker) -> None:
    """A field that no server knows: ignored by some, refused by others."""
    ask.post("/v1/completions", {**_completion(ask), "no_such_field": 1})


def bad_field(ask: Asker) -> None:
    """A field with a value of the wrong kind: how a validation error looks."""
    ask.post("/v1/completions", {**_completion(ask), "max_tokens": "many"})


def token_out_of_range(ask: Asker) -> None:
    """An id beyond the vocabulary."""
    ask.post("/v1/completions", {**_completion(ask), "prompt": [504, 99_999_999]})


def model_list(ask: Asker) -> None:
    """`/v1/models`, `/version`, `/health`: what the server says of itself."""
    for path in ("/v1/models", "/version", "/health"):
        ask.get(path)


def metrics_text(ask: Asker) -> None:
    """`/metrics` in Prometheus' text form after at least one request."""
    ask.post("/v1/completions", _completion(ask))
    ask.get("/metrics")


def tokenized(ask: Asker) -> None:
    """`/tokenize`: the server's own rendering of the conversation."""
    ask.post("/tokenize", {"model": ask.server.model_name, "messages": _chat(ask, max_tokens=1)["messages"]})


# --- SGLang's own routes ----------------------------------------------------------------------------------------------


def server_facts(ask: Asker) -> None:
    """Old and new names of the routes that describe model and server."""
    for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/models", "/health"):
        ask.get(path)


def generate_logprobs(ask: Asker) -> None:
    """`/generate` by ids with the log-probs of every sampled token."""
    ask.post("/generate", {**_generate(ask, 6), "return_logprob": True, "top_logprobs_num": 2})


def generate_trimmed(ask: Asker) -> None:
    """`/generate` with the server's habit of trimming the stop id out of the text: is it still among the ids?"""
    ask.post("/generate", _generate(ask, 64, prompt="short-stop"))


def generate_text(ask: Asker) -> None:
    """`/generate` with text in place of ids."""
    ask.post("/generate", {"text": "def add(a, b):", "sampling_params": {"temperature": 0, "max_new_tokens": 8}})


def generate_bad_field(ask: Asker) -> None:
    """A sampling parameter out of its range."""
    ask.post("/generate", {"input_ids": [504, 2, 3], "sampling_params": {"temperature": -1, "max_new_tokens": 2}})


def generate_out_of_range(ask: Asker) -> None:
    """An id beyond the vocabulary: SGLang's scheduler fails on it and takes the whole server down."""
    body = {"input_ids": [504, 99_999_999], "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    with contextlib.suppress(httpx.TransportError):
        ask.post("/generate", body)
    with contextlib.suppress(httpx.TransportError):
        ask.get("/health")


def generate_stream(ask: Asker) -> None:
    """`/generate` as server-sent events."""
    ask.post("/generate", {**_generate(ask, 4), "stream": True})


def last_hidden_states(ask: Asker) -> None:
    """The states SGLang can give: last layer, after the final norm, as lists of floats (two tokens, to stay small)."""
    ask.post(
        "/generate",
        {
            "input_ids": [504, 900],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_hidden_states": True,
        },
    )


# --- a server that speculates -----------------------------------------------------------------------------------------


def speculating(ask: Asker) -> None:
    """A server that speculates itself: its counters are read before and after the request."""
    ask.complete("fibonacci", max_new_tokens=48)


def _chat(ask: Asker, *, max_tokens: int) -> dict[str, object]:
    from engines.prompts import messages

    return {
        "model": ask.server.model_name,
        "messages": [message.model_dump() for message in messages("fibonacci")],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def _completion(ask: Asker) -> dict[str, object]:
    return {"model": ask.server.model_name, "prompt": [504, 2, 3, 504, 1, 900], "max_tokens": 2, "temperature": 0}


def _generate(ask: Asker, max_new_tokens: int, prompt: str = "fibonacci") -> dict[str, object]:
    return {
        "input_ids": ask.prompt_ids(prompt),
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "stop_token_ids": list(STOP_IDS),
        },
    }
