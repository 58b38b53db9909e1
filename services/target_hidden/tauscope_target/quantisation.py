"""Quantised checkpoints: what transformers can load is served, anything else is refused before weights are read."""

from tauscope_target.checkpoint import CheckpointFolder
from tauscope_wire.errors import CheckpointError, ErrorCode


def check_quantiser(folder: CheckpointFolder) -> None:
    """Check that transformers knows how to load the checkpoint's weights, if they are quantised.

    It skips a method that it does not know, with a warning, and would take packed integers for weights.

    Raises:
        CheckpointError: names the method.
    """
    found = folder.config.get("quantization_config")
    if found is None:
        return
    if not isinstance(found, dict):
        raise _refused(folder, f"quantization_config is {found!r:.80}, not a map")
    from transformers.quantizers.auto import AutoHfQuantizer

    try:
        is_known = AutoHfQuantizer.supports_quant_method(found)
    except ValueError:
        raise _refused(folder, "quantization_config names no quant_method") from None
    if not is_known:
        raise _refused(
            folder, f"this version of transformers cannot load quant_method {found.get('quant_method')!r:.80}"
        )


def _refused(folder: CheckpointFolder, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder.path}/config.json: {why}; dequantise the checkpoint, or serve another",
        ErrorCode.CHECKPOINT_UNSUPPORTED,
    )
