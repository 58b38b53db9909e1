"""Which cases are recorded from which engine, and the options that its server is started with for them.

A group is the set of cases that share one start of the server.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from engines.cases import (
    Case,
    admin_key_missing,
    bad_field,
    chat_greedy,
    chat_logprobs,
    chat_stop_text,
    chat_stream,
    chat_template_kwargs,
    chat_token_ids,
    completion_logprobs,
    context_overflow,
    generate_bad_field,
    generate_logprobs,
    generate_out_of_range,
    generate_stream,
    generate_text,
    generate_trimmed,
    greedy_length,
    greedy_stop,
    greedy_tail,
    key_given,
    key_missing,
    last_hidden_states,
    limit_overflow,
    metrics_text,
    model_list,
    queue_full,
    server_facts,
    speculating,
    template_switch,
    token_out_of_range,
    tokenized,
    unknown_field,
    wrong_model,
)
from engines.layout import SMOLLM2_DRAFTER

__all__ = ["DFLASH", "GROUPS", "Group"]

KEY: Final = "recorded-key"


@dataclass(frozen=True)
class Group:
    """Cases of one server start.

    Attributes:
        name: short name, for the log file.
        cases: in the order they are asked.
        extra: options of the server beside the usual ones.
        key: API key the server is started with.
        send_key: what the client sends in its place; the key itself by default.
        needs_drafter: the small drafter is trained first.
    """

    name: str
    cases: Sequence[Case]
    extra: Sequence[str] = ()
    key: str | None = None
    send_key: str | None = None
    needs_drafter: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


BY_CLIENT: Final = (greedy_stop, greedy_length, greedy_tail, context_overflow, limit_overflow)
OPENAI: Final = (
    *(model_list, wrong_model, completion_logprobs, chat_greedy, chat_token_ids, chat_template_kwargs, chat_logprobs),
    *(chat_stop_text, chat_stream, unknown_field, bad_field, token_out_of_range, tokenized, metrics_text),
)
GENERATE: Final = (
    *(server_facts, generate_logprobs, generate_trimmed, generate_text, generate_bad_field),
    generate_stream,
)

DFLASH: Final = (
    "--speculative-config",
    json.dumps({"method": "dflash", "model": str(SMOLLM2_DRAFTER), "num_speculative_tokens": 7}),
)
"""vLLM speculating with the small drafter: one anchor and seven masks a block."""

GROUPS: Final[dict[str, tuple[Group, ...]]] = {
    "sglang": (
        Group("plain", (*BY_CLIENT, *GENERATE, *[case for case in OPENAI if case is not token_out_of_range])),
        Group("keyed", (key_given,), key=KEY),
        Group("unkeyed", (key_missing,), key=KEY, send_key=""),
        Group("admin", (admin_key_missing,), key=KEY, extra=("--admin-api-key", "recorded-admin-key")),
        Group("full", (queue_full,), extra=("--max-running-requests", "1", "--max-queued-requests", "1")),
        Group("fatal", (generate_out_of_range,)),
        Group("states", (last_hidden_states,), extra=("--enable-return-hidden-states",)),
    ),
    "vllm": (
        Group("plain", (*BY_CLIENT, *OPENAI)),
        Group("keyed", (key_given,), key=KEY),
        Group("unkeyed", (key_missing,), key=KEY, send_key=""),
        Group("dflash", (speculating,), extra=DFLASH, needs_drafter=True),
    ),
    # Its context is the model's 8,192 tokens, and chat is all it takes: nothing overflows in reasonable time.
    "transformers": (Group("plain", (greedy_stop, greedy_length, greedy_tail, template_switch, *OPENAI)),),
    "llamacpp": (
        Group("plain", (*BY_CLIENT, template_switch, *OPENAI)),
        Group("unkeyed", (key_missing,), key=KEY, send_key=""),
    ),
}
