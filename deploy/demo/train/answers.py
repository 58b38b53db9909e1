"""Answers of a target: batched greedy generation, which of them ended cleanly, and the tap features of one prefill."""

import ast
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from deploy.demo.train.chat import END_OF_TEXT, STOP_IDS
from deploy.demo.train.fit import Log
from deploy.demo.train.settings import SEED

FEATURE_BATCH = 256
MAX_GRID = 65_535
"""CUDA's limit on the second grid axis: fla launches one block per sequence and value head there."""
MAX_REPEATED_LINES = 2
"""How often one line of 12 characters or more may occur in an answer before it counts as a loop."""
MIN_LOOP_LINE_CHARS = 12
MIN_RESPONSE_TOKENS = 3
"""Two tokens leave one anchor without a draft to check."""
WIDTH_STEP = 32
"""Prefills are as wide as a whole number of attention tiles."""


class Answer(NamedTuple):
    """A prompt with its greedy continuation.

    Attributes:
        ids: Prompt and response, ending with the stop id when the response ended.
        prompt_tokens: Length of the prompt.
        has_ended: Whether a stop id came before the limit.
    """

    ids: list[int]
    prompt_tokens: int
    has_ended: bool

    @property
    def response(self) -> list[int]:
        """Ids of the response."""
        return self.ids[self.prompt_tokens :]

    @property
    def has_drafts(self) -> bool:
        """Whether the response is long enough to train a drafter on."""
        return len(self.response) >= MIN_RESPONSE_TOKENS


@torch.no_grad()
def generate(
    model: Any,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    batch: int,
    log: Log | None = None,
    stop_ids: tuple[int, ...] = STOP_IDS,
    pad_id: int = END_OF_TEXT,
) -> list[Answer]:
    """Greedy answers to tokenized prompts, in the order given.

    Prompts are sorted by length and left-padded within a batch; a batch of one is not padded, which is the exact form.
    """
    device = next(model.parameters()).device
    batch = min(batch, MAX_GRID // getattr(model.config, "linear_num_value_heads", 1))
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: dict[int, Answer] = {}
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        width = len(prompts[chosen[-1]])
        ids = torch.full((len(chosen), width), pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(chosen):
            ids[row, width - len(prompts[index]) :] = torch.tensor(prompts[index])
            mask[row, width - len(prompts[index]) :] = 1
        new = model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stop_ids),
            pad_token_id=pad_id,
        )[:, width:].tolist()
        for row, index in enumerate(chosen):
            end = next((i for i, token in enumerate(new[row]) if token in stop_ids), None)
            response = new[row] if end is None else new[row][: end + 1]
            answers[index] = Answer(prompts[index] + response, len(prompts[index]), end is not None)
        if log is not None:
            log(f"  answered {min(start + batch, len(order))} of {len(order)} prompts")
    return [answers[i] for i in range(len(prompts))]


def is_clean(text: str, *, task: str) -> bool:
    """Whether the text of an ended answer is worth learning from: valid Python in a closed block, no line repeated
    over and over.

    Args:
        text: The answer without special tokens.
        task: A docstring answer is prose and is only checked for repetition.
    """
    lines = [line.strip() for line in text.split("\n") if len(line.strip()) >= MIN_LOOP_LINE_CHARS]
    if any(lines.count(line) > MAX_REPEATED_LINES for line in set(lines)):
        return False
    if task == "docstring":
        return text.startswith('"""') and text.rstrip().endswith('"""')
    match = re.fullmatch(r"```python\n(.*)\n```\s*", text, re.DOTALL)
    if match is None:
        return False
    try:
        ast.parse(match.group(1))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def take(items: Sequence[Any], count: int) -> list[Any]:
    """A fixed random sample."""
    return random.Random(SEED).sample(list(items), min(count, len(items)))


@torch.no_grad()
def layer_outputs(model: Any, ids: torch.Tensor, layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of decoder layers for one batch, by hooks.

    Args:
        model: A causal language model with ``model.model.layers``.
        ids: [batch, seq].
        layers: Canonical ids (0-based decoder layers), in any order.

    Returns:
        Features [batch, seq, layers, hidden] in the order given, and the last hidden state after the final norm
        [batch, seq, hidden].
    """
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            kept[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [model.model.layers[i].register_forward_hook(keep(i)) for i in sorted(set(layers))]
    try:
        last = model.model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([kept[i] for i in layers], 2), last


class Prefill(NamedTuple):
    """Answers on the device with their features.

    Attributes:
        ids: [N, W] int64, right-padded: causal layers make the padding harmless.
        prompt_tokens: [N].
        total_tokens: [N], prompt and response.
        features: [N, W, layers, hidden].
        layers: Canonical ids of the feature axis.
        agreement: Per answer of the first batch, the share of response tokens that are the prefill's own argmax:
            [min(N, batch)].
    """

    ids: torch.Tensor
    prompt_tokens: torch.Tensor
    total_tokens: torch.Tensor
    features: torch.Tensor
    layers: tuple[int, ...]
    agreement: torch.Tensor

    def taps(self, wanted: Sequence[int], rows: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """Features of some layers for some rows, concatenated in the order wanted: [n, W, len(wanted) * hidden]."""
        chosen = self.features[rows]
        return torch.cat([chosen[:, :, self.layers.index(i)] for i in wanted], -1)


@torch.no_grad()
def prefill(
    model: Any, answers: Sequence[Answer], *, layers: tuple[int, ...], width: int, batch: int = FEATURE_BATCH
) -> Prefill:
    """One forward over finished answers, ``batch`` at a time; keeps the outputs of ``layers`` on the model's device in
    its dtype.
    """
    parameter = next(model.parameters())
    device, hidden = parameter.device, model.config.hidden_size
    ids = torch.full((len(answers), width), END_OF_TEXT, dtype=torch.long)
    for row, answer in enumerate(answers):
        ids[row, : len(answer.ids)] = torch.tensor(answer.ids)
    ids = ids.to(device)
    starts = torch.tensor([a.prompt_tokens for a in answers], device=device)
    ends = torch.tensor([len(a.ids) for a in answers], device=device)
    features = torch.empty(len(answers), width, len(layers), hidden, dtype=parameter.dtype, device=device)
    agreement = torch.zeros(0)
    for start in range(0, len(answers), batch):
        rows = slice(start, start + batch)
        features[rows], last = layer_outputs(model, ids[rows], layers)
        if start == 0:
            choice = model.lm_head(last[:, :-1]).argmax(-1)
            position = torch.arange(1, width, device=device)
            is_response = (position >= starts[rows, None]) & (position < ends[rows, None])
            is_same = (choice == ids[rows, 1:]) & is_response
            agreement = is_same.sum(1) / is_response.sum(1).clamp(min=1)
    return Prefill(ids, starts, ends, features, layers, agreement)


def width_of(answers: list[Answer]) -> int:
    """Width of a prefill: the longest answer, rounded up to whole attention tiles."""
    return -(-max(len(a.ids) for a in answers) // WIDTH_STEP) * WIDTH_STEP


def share(flags: list[bool]) -> float:
    """Share of true values, four digits."""
    return round(sum(flags) / max(1, len(flags)), 4)
