"""The fingerprint of the drafter service's own arithmetic."""

from importlib.metadata import PackageNotFoundError, version

import torch

from tauscope_drafter.kernels.availability import attention_name
from tauscope_drafter.place import Place
from tauscope_wire.messages import Numerics


def fingerprint(place: Place, revision: str) -> Numerics:
    """How drafts are computed at a place, for weights of a revision."""
    dtype = str(place.dtype).removeprefix("torch.")
    is_gpu = place.device.type == "cuda"
    resident = "streamed" if place.stream_networks else "resident"
    return Numerics(
        revision=revision,
        compute_dtype=dtype,
        weights_dtype=dtype,
        device=place.device.type,
        device_name=torch.cuda.get_device_name(place.device) if is_gpu else "",
        torch=torch.__version__,
        transformers=_version("transformers"),
        attention=attention_name(place.device, place.dtype),
        weights_mode=resident if is_gpu else "cpu",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
