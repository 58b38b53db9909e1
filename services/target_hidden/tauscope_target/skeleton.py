"""A model without its weights: the configuration, and the modules with large parameters on the meta device."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tauscope_target.checkpoint import CheckpointFolder
from tauscope_target.quantisation import check_quantiser
from tauscope_wire.errors import CheckpointError, ErrorCode


class _EmptyOnMeta(TorchFunctionMode):
    """Puts what layers allocate for their weights on the meta device; tables that are computed stay real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def read_config(folder: CheckpointFolder) -> Any:
    """The text model's transformers configuration.

    Raises:
        CheckpointError: an unknown model type or quantisation, or a configuration that transformers refuses.
    """
    from transformers import AutoConfig

    check_quantiser(folder)
    try:
        config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, TypeError) as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise CheckpointError(
            f"{folder.path}/config.json: transformers cannot use it: {first}", ErrorCode.CHECKPOINT_UNSUPPORTED
        ) from None
    is_text_tower = str(config.model_type).startswith("qwen3_5") and hasattr(config, "text_config")
    return config.get_text_config() if is_text_tower else config


def checkpoint_dtype(folder: CheckpointFolder) -> torch.dtype:
    """Dtype that the configuration names, else that of the largest tensor, else float32."""
    named = folder.text_config.get("dtype") or folder.text_config.get("torch_dtype") or folder.config.get("dtype")
    found = getattr(torch, str(named).removeprefix("torch."), None) if named else None
    if isinstance(found, torch.dtype):
        return found
    largest = max(folder.entries.values(), key=lambda entry: entry.nbytes, default=None)
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16}
    return kinds.get(largest.dtype, torch.float32) if largest is not None else torch.float32


def build_skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model without weights: large parameters on the meta device, computed tables real."""
    from transformers import AutoModelForCausalLM

    from tauscope_target import attention

    attention.register()
    try:
        with _EmptyOnMeta():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except ValueError as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise CheckpointError(f"no causal language model for it: {first}", ErrorCode.CHECKPOINT_UNSUPPORTED) from None
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)
    return model


def needs_conversion(model: Any) -> bool:
    """Whether transformers would compute tensors from several stored ones, or permute them."""
    from transformers.conversion_mapping import WeightConverter, get_model_conversion_mapping

    return any(isinstance(step, WeightConverter) for step in get_model_conversion_mapping(model))
