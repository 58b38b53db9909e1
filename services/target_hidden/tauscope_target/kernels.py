"""Which kernels really ran: observed while a pass runs, never concluded from what is installed.

An import that fails, a missing GPU or a compiler can each swap the gated delta kernels in silence. So the first passes
run under a profile hook that sees every Python call of the thread and notes who was entered: the reference functions
inside transformers, or fla's or causal-conv1d's entry points, and which attention. Later passes compare the bound
functions by identity.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import nn

from tauscope_wire.errors import ErrorCode, InternalError

REFERENCE = "torch-reference"
FLA = "fla"
UNOBSERVED = "unobserved"

_DELTA_RULES = {
    "torch_chunk_gated_delta_rule": ("transformers.", REFERENCE),
    "torch_recurrent_gated_delta_rule": ("transformers.", REFERENCE),
    "chunk_gated_delta_rule": ("fla.", FLA),
    "fused_recurrent_gated_delta_rule": ("fla.", FLA),
}
_ATTENTIONS = {
    "causal_attention": ("tauscope_target.attention", "sdpa"),
    "sdpa_attention_forward": ("transformers.", "sdpa"),
    "eager_attention_forward": ("transformers.", "eager"),
    "flash_attention_forward": ("transformers.", "flash_attention"),
    "flex_attention_forward": ("transformers.", "flex_attention"),
}
_BOUND_NAMES = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "causal_conv1d_fn",
    "causal_conv1d_update",
)


@dataclass
class Observation:
    """Kernel families that were entered, by kind of work."""

    linear_attention: set[str] = field(default_factory=set)
    convolution: set[str] = field(default_factory=set)
    attention: set[str] = field(default_factory=set)

    def note(self, function: str, module: str) -> None:
        """Note one Python call."""
        rule, attention = _DELTA_RULES.get(function), _ATTENTIONS.get(function)
        if rule is not None and module.startswith(rule[0]):
            self.linear_attention.add(rule[1])
        elif attention is not None and module.startswith(attention[0]):
            self.attention.add(attention[1])
        elif function.startswith("causal_conv1d"):
            if module.startswith("transformers."):
                self.convolution.add("torch")
            elif module.startswith("causal_conv1d"):
                self.convolution.add("causal-conv1d")
            elif module.startswith("fla."):
                self.convolution.add(FLA)
            elif module == "tauscope_target.exact":
                self.convolution.add("torch")  # proven to give torch's very bits before it was put in place
            elif module.startswith("tauscope_target."):
                self.convolution.add("fused")

    @property
    def linear_attention_name(self) -> str:
        """One name for the fingerprint; several families are joined."""
        return "+".join(sorted(self.linear_attention)) or UNOBSERVED

    @property
    def convolution_name(self) -> str:
        """One name for the fingerprint."""
        return "+".join(sorted(self.convolution)) or UNOBSERVED

    @property
    def attention_name(self) -> str:
        """One name for the fingerprint."""
        return "+".join(sorted(self.attention)) or UNOBSERVED


@contextmanager
def observing(observation: Observation) -> Iterator[None]:
    """Note every Python call of this thread while the block runs."""

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            observation.note(frame.f_code.co_name, frame.f_globals.get("__name__", ""))

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(before)


class KernelWatch:
    """The functions that a model's layers call, held by identity since they were observed."""

    def __init__(self, model: nn.Module) -> None:
        self._config: Any = model.config
        self._scopes = layer_scopes(model)
        self._bound = self._read()

    def check(self) -> None:
        """Compare with the observed ones.

        Raises:
            InternalError: something rebound a kernel after the fingerprint was taken (`kernels_changed`).
        """
        if any(now is not bound for now, bound in zip(self._read(), self._bound, strict=True)):
            raise InternalError(
                "attention or linear-attention kernels were replaced after start-up, so the fingerprint is no longer "
                "true; restart the service",
                ErrorCode.KERNELS_CHANGED,
            )

    def _read(self) -> list[Any]:
        from transformers import AttentionInterface  # not before `guard` has run

        attention = AttentionInterface().get(self._config._attn_implementation)
        return [attention, *(scope.get(name) for scope in self._scopes for name in _BOUND_NAMES)]


def layer_scopes(model: nn.Module) -> list[dict[str, Any]]:
    """Global namespaces of the classes that hold a short convolution (the gated delta layers)."""
    scopes: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        forward: Callable[..., Any] = type(module).forward
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        scope = getattr(forward, "__globals__", None)
        if scope is not None and any(name in scope for name in _BOUND_NAMES):
            scopes[id(scope)] = scope
    return list(scopes.values())


def pin_configurations(modules: dict[str, Any] | None = None) -> dict[str, Any]:
    """Leave one configuration to every Triton autotuner of fla that is loaded.

    Autotuning times 6 to 48 configurations per kernel and shape: minutes of compilation, memory, and other bits from
    run to run. The choice here is a middle one: blocks of 64, 4 warps, 2 stages.

    Returns:
        The autotuners by full name of their kernel (several modules of fla have a kernel of the same short name), as
        not launched yet, for `ran_configurations`.
    """
    table = sys.modules if modules is None else modules
    if table.get("triton") is None:
        return {}
    Autotuner: Any = table["triton"].runtime.autotuner.Autotuner

    tuners: dict[str, Any] = {}
    for module_name, module in list(table.items()):
        if module is None or not module_name.startswith("fla."):
            continue
        for value in list(vars(module).values()):
            tuner = value
            while tuner is not None and not isinstance(tuner, Autotuner):
                tuner = getattr(tuner, "fn", None) if type(tuner).__module__.startswith("triton.") else None
            if tuner is not None:
                if len(tuner.configs) > 1:
                    tuner.configs = [min(tuner.configs, key=_distance)]
                vars(tuner).pop(_LAUNCHED, None)  # by an earlier engine of this process
                tuners[f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}"] = tuner
    return tuners


def ran_configurations(tuners: dict[str, Any]) -> dict[str, str]:
    """Configuration of every pinned kernel that has been launched since, by its short name where that is unique."""
    launched = {name: getattr(tuner, _LAUNCHED, None) for name, tuner in sorted(tuners.items())}
    configurations = {name: str(config) for name, config in launched.items() if config is not None}
    count = Counter(name.rpartition(".")[2] for name in configurations)
    return {
        short if count[short := name.rpartition(".")[2]] == 1 else name: config
        for name, config in configurations.items()
    }


_LAUNCHED = "best_config"
"""What an autotuner sets when it launches its kernel."""
_MIDDLE = {"BK": 64, "BV": 64, "BS": 64, "BD": 64, "BC": 64, "BT": 32}


def _distance(config: Any) -> float:
    """How far a Triton configuration is from the middle one, in doublings."""
    away: float = 2.0 * abs((config.num_warps or 4).bit_length() - 3) + 0.5 * abs((config.num_stages or 2) - 2)
    for name, value in config.kwargs.items():
        if name in _MIDDLE and isinstance(value, int):
            away += abs(value.bit_length() - _MIDDLE[name].bit_length())
    return away
