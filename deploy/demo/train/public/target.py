"""A public target: the model with its tokenizer, and what a drafter has to know about it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass
class PublicTarget:
    """A loaded decoder-only model.

    Attributes:
        name: Of its folder.
        model: With ``model.model.layers``; float32 on a CPU, bfloat16 on a GPU.
        tokenizer: Its own.
        stop_ids: From its generation configuration.
        pad_id: Fills batches.
        config_sha256: Of its ``config.json``.
    """

    name: str
    model: Any
    tokenizer: Any
    stop_ids: tuple[int, ...]
    pad_id: int
    config_sha256: str

    @property
    def embedding(self) -> torch.Tensor:
        """Input table [vocab, hidden]."""
        table: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        return table

    @property
    def head(self) -> torch.Tensor:
        """Output head [vocab, hidden]; the input table where they are tied."""
        rows: torch.Tensor = self.model.get_output_embeddings().weight.detach()
        return rows

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.model.model.layers)

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.embedding.shape[1])


def load_target(folder: Path, *, device: str) -> PublicTarget:
    """Load a checkpoint that transformers knows.

    Raises:
        ValueError: The model is not built as the networks here need it.
    """
    import transformers

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.requires_grad_(False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    check(model, folder)
    stops = model.generation_config.eos_token_id
    stop_ids = tuple(stops) if isinstance(stops, list) else (stops,)
    if None in stop_ids:
        raise ValueError(f"{folder}: no eos_token_id in the generation configuration, so that no answer would end")
    pad = model.generation_config.pad_token_id
    pad_id = stop_ids[0] if pad is None else pad
    # Penalties and temperatures of the published configuration would make the text another than plain greedy.
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=list(stop_ids), pad_token_id=pad_id
    )
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    return PublicTarget(folder.resolve().name, model, tokenizer, stop_ids, pad_id, digest)


def check(model: Any, folder: Path) -> None:
    """Refuse what the training would silently get wrong.

    Raises:
        ValueError: Layers are elsewhere, the embedding is scaled or the head has a bias.
    """
    if not hasattr(getattr(model, "model", None), "layers"):
        raise ValueError(f"{folder}: {type(model).__name__} keeps no decoder layers in model.layers")
    if type(model.get_input_embeddings()) is not nn.Embedding:
        kind = type(model.get_input_embeddings()).__name__
        raise ValueError(f"{folder}: its embedding is a {kind}; drafters here read the plain table")
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ValueError(f"{folder}: its head has a bias, which drafters here would leave out")


def choose_mask(tokenizer: Any, used: Iterable[int]) -> int:
    """A token to stand for places to fill: the tokenizer's mask, else its first special token that no text here
    contains and that has no duty of its own.

    Raises:
        ValueError: There is none.
    """
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    on_duty = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    special = {int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    free = sorted(special - on_duty - set(used))
    if not free:
        raise ValueError("mask_id: the tokenizer has no special token that is free; name an unused id with --mask-id")
    return free[0]
