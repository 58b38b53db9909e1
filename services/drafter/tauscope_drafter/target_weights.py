"""Embedding, head and final norm of the target, from its checkpoint folder; nothing else of it is read."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.facts import TargetFacts
from tauscope_drafter.checkpoint.files import open_tensors, read_json
from tauscope_drafter.checkpoint.tensor_file import TensorFile
from tauscope_wire.errors import CheckpointError, ErrorCode
from tauscope_wire.messages import ModelInfo

# Text towers of vision-language models keep their decoder one level deeper, at either end.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
# Families of targets whose norm weight is stored as w and multiplies as 1 + w.
_ONE_PLUS_NORM = ("qwen3_5", "qwen3_next", "gemma")


class TargetFolder:
    """The target's checkpoint, opened; tensors are read when asked for.

    Args:
        path: folder with `config.json` and the weights.

    Raises:
        CheckpointError: not a checkpoint of a decoder-only model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        text = self.config.get("text_config")
        self._text: Mapping[str, Any] = text if isinstance(text, Mapping) else self.config
        self._file: TensorFile = open_tensors(path)
        self._infos = self._file.infos()
        self._embedding_name = self._find("embed_tokens.weight")
        vocab, hidden = self._infos[self._embedding_name].shape
        self.facts = TargetFacts(
            num_layers=self._number("num_hidden_layers"),
            hidden_size=hidden,
            vocab_size=vocab,
            model_type=str(self._text.get("model_type", self.config.get("model_type", ""))),
            config=self._text,
        )

    @property
    def file(self) -> TensorFile:
        """All tensors of the checkpoint (MTP heads lie among them)."""
        return self._file

    def embedding(self) -> Tensor:
        """[V, Ht] on the host, in the dtype of the file."""
        return self._file.read(self._embedding_name)

    def head(self) -> Tensor:
        """[V, Ht] on the host; the embedding where the two are tied.

        Raises:
            CheckpointError: the file has no head and the configuration does not tie it to the embedding.
        """
        name = next((n for n in _HEADS if n in self._infos), None)
        if name is not None:
            return self._file.read(name)
        if self._text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False)):
            return self.embedding()
        raise CheckpointError(
            f"{self.path}: no lm_head.weight, and tie_word_embeddings is not set", ErrorCode.TENSOR_MISSING
        )

    def final_norm(self) -> Tensor:
        """float32 [Ht], as it multiplies: 1 is already added for models that store w of 1 + w."""
        weight = self._file.read(self._find("norm.weight")).to(torch.float32)
        return weight + 1.0 if self.facts.model_type.startswith(_ONE_PLUS_NORM) else weight

    @property
    def norm_eps(self) -> float:
        """Epsilon of the final norm."""
        return float(self._text.get("rms_norm_eps", 1e-6))

    def model_info(self) -> ModelInfo:
        """Identity of the target as this folder gives it; its revision is the target service's to tell."""
        stops = self._text.get("eos_token_id")
        return ModelInfo(
            id=self.path.name,
            revision="",
            config_sha256=hashlib.sha256((self.path / "config.json").read_bytes()).hexdigest(),
            num_layers=self.facts.num_layers,
            hidden_size=self.facts.hidden_size,
            vocab_size=self.facts.vocab_size,
            stop_token_ids=stops if isinstance(stops, list) else ([] if stops is None else [stops]),
        )

    def _find(self, name: str) -> str:
        for prefix in _PREFIXES:
            if prefix + name in self._infos:
                return prefix + name
        raise CheckpointError(
            f"{self.path}: no tensor {' or '.join(p + name for p in _PREFIXES[:3])}: not a decoder-only checkpoint",
            ErrorCode.TENSOR_MISSING,
        )

    def _number(self, name: str) -> int:
        value = self._text.get(name)
        if not isinstance(value, int):
            raise CheckpointError(f"{self.path}/config.json: no {name}", ErrorCode.CONFIG_INCOMPLETE)
        return value
