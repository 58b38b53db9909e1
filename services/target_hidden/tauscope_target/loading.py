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

from tauscope_target.anatomy import Anatomy, dissect
from tauscope_target.checkpoint import CheckpointFolder
from tauscope_target.naming import UNUSED, listed, match_names, persistent
from tauscope_target.skeleton import build_skeleton, needs_conversion, read_config
from tauscope_target.weights import WeightSource, open_source
from tauscope_wire.errors import CheckpointError, ErrorCode

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

Allocate = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
"""Gives the memory of one parameter: (name in the model, shape, dtype) -> uninitialised tensor."""


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
    if needs_conversion(model):
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


def fill(
    anatomy: Anatomy, source: WeightSource, names: Mapping[str, str], plan: LoadingPlan, *, progress: Progress
) -> None:
    """Allocate every parameter and read its tensor into it; then tie what the configuration ties."""
    model = anatomy.model
    allocate = plan.place(anatomy) if plan.place is not None else _on(plan.device)
    tensors = dict(persistent(model))
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
            f"{type(anatomy.model).__name__} keeps {listed(stuck)} outside the checkpoint in a way that is not known",
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
            raise CheckpointError(f"{folder.path}: {code.value.replace('_', ' ')}: {listed(names)}", code)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)
    model.to(plan.device)
    model.eval().requires_grad_(False)
    return dissect(model, has_head=plan.with_head)


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


def _all_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
