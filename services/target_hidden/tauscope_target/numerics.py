"""The fingerprint of the arithmetic, from what was observed."""

from importlib import metadata
from typing import Any

import torch

from tauscope_target.arithmetic import device_name
from tauscope_target.kernels import FLA, UNOBSERVED, Observation
from tauscope_wire.errors import ErrorCode, MismatchError
from tauscope_wire.messages import Numerics

LINEAR = "linear_attention"


def fingerprint(
    *,
    revision: str,
    config: Any,
    layer_types: list[str],
    device: torch.device,
    compute_dtype: torch.dtype,
    weights_mode: str,
    observation: Observation,
    kernel_configs: dict[str, str],
    options: list[str],
    quantization: str | None = None,
    weights_dtype: torch.dtype | None = None,
) -> Numerics:
    """Describe how this service computes.

    Args:
        revision: of the weights.
        config: the text model's configuration.
        layer_types: one per decoder layer.
        device: where activations live.
        compute_dtype: of activations.
        weights_mode: `resident`, `streamed` or `cpu`.
        observation: kernels seen while the warm-up pass ran.
        kernel_configs: pinned configurations of kernels that ran.
        options: named modes that change bits.
        quantization: of the checkpoint.
        weights_dtype: dtype of the weights as held, when it is not that of the activations.
    """
    is_hybrid = LINEAR in layer_types
    linear = observation.linear_attention_name if is_hybrid else None
    attention = observation.attention_name
    if attention == UNOBSERVED:  # an architecture with attention of its own, or without any
        attention = str(getattr(config, "_attn_implementation", "") or "").removeprefix("tauscope_")
    return Numerics(
        revision=revision,
        compute_dtype=_name(compute_dtype),
        weights_dtype=_name(weights_dtype or compute_dtype),
        quantization=quantization,
        device=device.type,
        device_name=device_name(device),
        torch=str(torch.__version__),
        transformers=metadata.version("transformers"),
        fla=_version("fla-core") if linear is not None and FLA in linear else None,
        attention=attention,
        weights_mode=weights_mode,
        linear_attention=linear,
        convolution=observation.convolution_name if is_hybrid else None,
        reference_kernels=is_hybrid and linear != FLA,
        kernel_configs=kernel_configs,
        options=options,
    )


def refuse_reference_kernels(numerics: Numerics, *, allowed: bool) -> None:
    """Refuse to serve a hybrid model on reference kernels.

    Raises:
        MismatchError: `reference_kernels_refused`; says what to install, and how to allow it by name.
    """
    if numerics.reference_kernels and not allowed:
        raise MismatchError(
            f"this hybrid model's linear attention ran on {numerics.linear_attention!r}, not on the fla kernels that "
            "drafters are trained with; hidden states would differ by up to several percent. Use a GPU with "
            "flash-linear-attention and triton installed, or accept it with --allow-reference-kernels",
            ErrorCode.REFERENCE_KERNELS_REFUSED,
            details={"linear_attention": numerics.linear_attention, "device": numerics.device},
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
