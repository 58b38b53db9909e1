"""From a checkpoint folder to a model: the skeleton first, then every tensor straight into its place.

The skeleton is built with its large parameters on the meta device, so nothing is allocated twice. Every tensor name and
shape is checked before the first byte is read. Skipped, and never read: the vision tower, MTP heads, layers above the
deepest one that may be asked, and the head when it is not wanted.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tauscope_target.anatomy import Anatomy, dissect
from tauscope_target.checkpoint import CheckpointFolder
from tauscope_target.weights import WeightSource, open_source
from tauscope_wire.errors import CheckpointError, ErrorCode

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

Allocate = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
"""Gives the memory of one parameter: (name in the model, shape, dtype) -> uninitialised tensor."""

UNUSED = re.compile(r"^(model\.)?(visual|vision_tower|mtp)\.|^mtp_|\.rotary_emb\.inv_freq$|\.masked_bias$")
"""Tensors that belong to parts which are never served, or that the model computes itself."""

PREFIXES: tuple[tuple[str, str], ...] = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""How vision-language checkpoints name their text tower, and the text model's own names."""


@dataclass(frozen=True)
class LoadingPlan:
    """What to load, and into what.

    Attributes:
        dtype: of weights and activations.
        device: where everything lives that `place` does not put elsewhere.
        deepest_layer: last decoder layer to load, or None for all.
        with_head: load final norm and output projection.
        place: given the trimmed skeleton, gives the memory of each parameter; None puts everything on `device`.
    """

    dtype: torch.dtype
    device: torch.device
    deepest_layer: int | None = None
    with_head: bool = True
    place: Callable[[Anatomy], Allocate] | None = None


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
        CheckpointError: an unknown model type, or a configuration that transformers refuses.
    """
    from transformers import AutoConfig

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


def load(folder: CheckpointFolder, plan: LoadingPlan, *, progress: Progress = lambda done, total: None) -> Anatomy:
    """Load the text model of a checkpoint.

    Args:
        folder: the opened checkpoint.
        plan: what to load and where.
        progress: told about bytes as they are read.

    Returns:
        The parts of a model in evaluation mode, without gradients.

    Raises:
        CheckpointError: a tensor is missing, unexpected, or of another shape; or the model is not supported.
    """
    config = read_config(folder)
    if folder.config.get("quantization_config") is not None:
        return _load_by_library(folder, config, plan)
    model = build_skeleton(config, plan.dtype)
    if _needs_conversion(model):
        return _load_by_library(folder, config, plan)
    return assemble(model, open_source(folder), plan, progress=progress)


def assemble(
    model: Any, source: WeightSource, plan: LoadingPlan, *, progress: Progress = lambda done, total: None
) -> Anatomy:
    """Fill a skeleton from a source.

    Args:
        model: a skeleton of `build_skeleton`.
        source: tensors by their names in a checkpoint.
        plan: what to load and where.
        progress: told about bytes as they are read.

    Raises:
        CheckpointError: see `load`.
    """
    anatomy = dissect(model, has_head=plan.with_head)
    _trim(anatomy, plan)
    names = match_names(model, source.shapes(), skipped=_skipper(anatomy, plan))
    fill(anatomy, source, names, plan, progress=progress)
    return _finished(anatomy, plan)


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


def match_names(model: Any, shapes: Mapping[str, tuple[int, ...]], *, skipped: Callable[[str], bool]) -> dict[str, str]:
    """Pair every parameter with a tensor of the checkpoint.

    Args:
        model: the skeleton.
        shapes: what the checkpoint holds.
        skipped: whether a tensor, by its name in the model, belongs to a part that is left out.

    Returns:
        Name in the model -> name in the checkpoint.

    Raises:
        CheckpointError: `tensor_missing`, `tensor_unexpected` or `tensor_shape`; names each.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in _persistent(model)}
    tied = set(getattr(model, "_tied_weights_keys", None) or {}) if model.config.tie_word_embeddings else set()
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []]
    prefix = f"{model.base_model_prefix}."
    has_prefix = any(_rename(name).startswith(prefix) for name in shapes)
    found: dict[str, str] = {}
    unexpected = []
    for name in shapes:
        own = _rename(name)
        if not has_prefix and f"{prefix}{own}" in wanted:
            own = f"{prefix}{own}"  # a checkpoint of the base model alone
        if own in wanted:
            found[own] = name
        elif not (UNUSED.search(name) or own in tied or skipped(own) or any(p.search(name) for p in ignored)):
            unexpected.append(name)
    optional = tied | {name for name, buffer in model.named_buffers() if buffer.device.type != "meta"}
    missing = [name for name in wanted if name not in found and name not in optional]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {_listed(missing)} of {type(model).__name__}",
            ErrorCode.TENSOR_MISSING,
            details={"missing": missing[:20], "unexpected": unexpected[:20]},
        )
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {_listed(unexpected)}, which {type(model).__name__} does not have; "
            "is config.json the one of this checkpoint?",
            ErrorCode.TENSOR_UNEXPECTED,
            details={"unexpected": unexpected[:20]},
        )
    for own, name in found.items():
        if shapes[name] != wanted[own]:
            raise CheckpointError(
                f"{name} has shape {list(shapes[name])}; the configuration asks for {list(wanted[own])}",
                ErrorCode.TENSOR_SHAPE,
                details={"tensor": name, "found": list(shapes[name]), "expected": list(wanted[own])},
            )
    return {own: name for own, name in found.items() if own not in tied}


def fill(
    anatomy: Anatomy, source: WeightSource, names: Mapping[str, str], plan: LoadingPlan, *, progress: Progress
) -> None:
    """Allocate every parameter and read its tensor into it; then tie what the configuration ties."""
    model = anatomy.model
    allocate = plan.place(anatomy) if plan.place is not None else _on(plan.device)
    tensors = dict(_persistent(model))
    sizes = {name: tensors[name].numel() * tensors[name].element_size() for name in names}
    done, total = 0, sum(sizes.values())
    for name, stored in names.items():
        skeleton = tensors[name]
        place = allocate(name, tuple(skeleton.shape), parameter_dtype(model, name, skeleton, plan))
        source.read_into(stored, place)
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(skeleton, nn.Parameter):
            setattr(module, leaf, nn.Parameter(place, requires_grad=False))
        else:
            setattr(module, leaf, place)
        done += sizes[name]
        progress(done, total)
    if model.config.tie_word_embeddings:
        model.tie_weights()


def parameter_dtype(model: Any, name: str, skeleton: torch.Tensor, plan: LoadingPlan) -> torch.dtype:
    """Dtype that a parameter is held in: the plan's, except what the architecture keeps in float32."""
    if any(re.search(pattern, name) for pattern in getattr(model, "_keep_in_fp32_modules_strict", None) or []):
        return torch.float32
    return plan.dtype if skeleton.dtype.is_floating_point else skeleton.dtype


def _on(device: torch.device) -> Allocate:
    def allocate(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return allocate


def _finished(anatomy: Anatomy, plan: LoadingPlan) -> Anatomy:
    stuck = [name for name, tensor in _all_tensors(anatomy.model) if tensor.device.type == "meta"]
    if stuck:
        raise CheckpointError(
            f"{type(anatomy.model).__name__} keeps {_listed(stuck)} outside the checkpoint in a way that is not known",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    for module in anatomy.model.modules():
        if module is anatomy.embedding and anatomy.embedding.weight.device != plan.device:
            continue  # looked up in host memory, with its own scale
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != plan.device:
                module._buffers[name] = buffer.to(plan.device)
    anatomy.model.eval().requires_grad_(False)
    return anatomy


def _load_by_library(folder: CheckpointFolder, config: Any, plan: LoadingPlan) -> Anatomy:
    """Let transformers load what needs its weight conversions (fused experts) or a quantiser; verified all the same."""
    from transformers import AutoModelForCausalLM

    from tauscope_target import attention

    if plan.place is not None or plan.deepest_layer is not None:
        raise CheckpointError(
            f"{folder.path}: this checkpoint is converted or dequantised while it is loaded, which only the resident "
            "and cpu modes with all layers can do",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    attention.register()
    try:
        model, facts = AutoModelForCausalLM.from_pretrained(
            folder.path,
            config=config,
            dtype=plan.dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise CheckpointError(f"{folder.path}: {first}", ErrorCode.CHECKPOINT_UNSUPPORTED) from None
    missing = sorted(map(str, facts.get("missing_keys", ())))
    unexpected = sorted(str(k) for k in facts.get("unexpected_keys", ()) if not UNUSED.search(str(k)))
    mismatched = list(facts.get("mismatched_keys", ()))
    for names, code in (
        (missing, ErrorCode.TENSOR_MISSING),
        (unexpected, ErrorCode.TENSOR_UNEXPECTED),
        (list(map(str, mismatched)), ErrorCode.TENSOR_SHAPE),
    ):
        if names:
            raise CheckpointError(f"{folder.path}: {code.value.replace('_', ' ')}: {_listed(names)}", code)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)
    model.to(plan.device)
    model.eval().requires_grad_(False)
    return dissect(model, has_head=plan.with_head)


def _needs_conversion(model: Any) -> bool:
    """Whether transformers would compute tensors from several stored ones, or permute them."""
    from transformers.conversion_mapping import WeightConverter, get_model_conversion_mapping

    return any(isinstance(step, WeightConverter) for step in get_model_conversion_mapping(model))


def _trim(anatomy: Anatomy, plan: LoadingPlan) -> None:
    """Take layers above the deepest one, and an unwanted head, out of the skeleton."""
    if plan.deepest_layer is not None:
        del anatomy.layers[plan.deepest_layer + 1 :]
    if not plan.with_head and not anatomy.model.config.tie_word_embeddings:
        anatomy.model.set_output_embeddings(nn.Identity())


def _skipper(anatomy: Anatomy, plan: LoadingPlan) -> Callable[[str], bool]:
    layer = re.compile(re.escape(anatomy.layers_path) + r"\.(\d+)\.")

    def skipped(name: str) -> bool:
        match = layer.match(name)
        if match and plan.deepest_layer is not None and int(match[1]) > plan.deepest_layer:
            return True
        return not plan.with_head and name.startswith("lm_head.")

    return skipped


def _rename(name: str) -> str:
    for old, new in PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _persistent(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    for owner, module in model.named_modules():
        for leaf, buffer in module._buffers.items():
            if buffer is not None and leaf not in module._non_persistent_buffers_set:
                yield (f"{owner}.{leaf}" if owner else leaf), buffer


def _all_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _listed(names: list[str], *, most: int = 5) -> str:
    shown = ", ".join(names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"
