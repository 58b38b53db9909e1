"""Start-up of the compute side: load, warm up under observation, take the fingerprint, prove it, refuse or be ready."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tauscope_target import arithmetic, guard
from tauscope_target.anatomy import Anatomy
from tauscope_target.checkpoint import CheckpointFolder, open_checkpoint
from tauscope_target.device_memory import context_memory, current, measure
from tauscope_target.duty import Duty
from tauscope_target.engine import EngineParts, TorchEngine
from tauscope_target.exact import apply_exact, load_kernels
from tauscope_target.fused import apply_options
from tauscope_target.jobs import TargetFacts
from tauscope_target.kernels import KernelWatch, Observation, observing, pin_configurations, ran_configurations
from tauscope_target.loading import LoadingPlan, Progress, load
from tauscope_target.memory import Budget
from tauscope_target.modes import ModeDecision, ModeRequest, apply_bound, build, decide, default_duty, settle
from tauscope_target.numerics import fingerprint, refuse_reference_kernels
from tauscope_target.selftests import SelfTestPlan, jobs_for, noise_floor, run_self_tests, states_of
from tauscope_target.sizes import model_sizes
from tauscope_target.skeleton import checkpoint_dtype, read_config
from tauscope_target.spread import build_spread, decide_spread
from tauscope_target.warm_up import fill_a_pass, warm_up
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, InternalError
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import ModelInfo, SelfTest

MAX_TESTED_LAYERS = 8


@dataclass(frozen=True)
class EngineSettings:
    """How to load and run the model.

    Attributes:
        model: checkpoint folder.
        device: `auto`, `cpu` or `cuda`.
        compute_dtype: `auto`, or by name.
        model_id: name in answers; the folder's name by default.
        allow_reference_kernels: serve a hybrid model on the slow reference functions.
        deepest_layer: last layer that may be asked; None for all.
        with_head: load final norm and head.
        options: named faster paths, see `fused.OPTIONS`.
        devices: numbers of the GPUs that a resident model is spread over; one or none is the usual single device.
        mode: how weights are held, memory caps, size of passes.
    """

    model: Path
    device: arithmetic.DeviceChoice = "auto"
    compute_dtype: arithmetic.DtypeChoice = "auto"
    model_id: str | None = None
    allow_reference_kernels: bool = False
    deepest_layer: int | None = None
    with_head: bool = True
    mode: ModeRequest = field(default_factory=ModeRequest)
    devices: tuple[int, ...] = ()
    options: tuple[str, ...] = field(default_factory=tuple)


def start_engine(
    settings: EngineSettings,
    *,
    progress: Progress = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> TorchEngine:
    """Load a checkpoint and make it ready to serve.

    Args:
        settings: what to load and how.
        progress: told about bytes of weights read.
        say: told one line per stage.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        MismatchError: a hybrid model on reference kernels that nobody allowed (`reference_kernels_refused`).
        InternalError: a self-test failed that no answer may be built on (`batch_against_single`).
    """
    folder = open_checkpoint(settings.model)
    devices = arithmetic.numbered_devices(settings.devices) or [arithmetic.choose_device(settings.device)]
    device = devices[0]
    if device.type == "cpu":
        guard.block_gpu_kernels()
    with current(device):
        return _start(settings, folder, devices, progress=progress, say=say)


def _start(
    settings: EngineSettings,
    folder: CheckpointFolder,
    devices: Sequence[torch.device],
    *,
    progress: Progress,
    say: Callable[[str], None],
) -> TorchEngine:
    device = devices[0]
    stored = checkpoint_dtype(folder)
    dtype = arithmetic.choose_dtype(
        settings.compute_dtype,
        stored,
        device=device,
        num_parameters=folder.nbytes // stored.itemsize,
        available_bytes=arithmetic.available_memory(),
    )
    with_head = settings.with_head and settings.deepest_layer is None
    name = settings.model.resolve().name
    say(f"loading {name}: {folder.nbytes / 1e9:.2f} GB, computing in {_name(dtype)} on {device.type}")
    plan = LoadingPlan(dtype=dtype, device=device, deepest_layer=settings.deepest_layer, with_head=with_head)
    sizes = model_sizes(
        folder,
        read_config(folder).to_dict(),
        itemsize=dtype.itemsize,
        deepest_layer=settings.deepest_layer,
        with_head=with_head,
    )
    memories = [measure(each) for each in devices]
    duty = Duty(settings.mode.max_duty or min(map(default_duty, memories)))

    def read(chosen: LoadingPlan) -> Anatomy:
        return load(folder, chosen, progress=progress)

    def bound_tensors() -> None:
        for each, memory in zip(devices, memories, strict=True):
            apply_bound(settings.mode, memory, each)

    if len(devices) > 1:
        decision, spread = decide_spread(sizes, settings.mode, devices, memories)
        say(f"weights {decision.reason}; passes of {decision.budget.pass_tokens} tokens")
        bound_tensors()
        parts = build_spread(read, decision, spread, plan=plan, duty=duty)
    else:
        decision = decide(sizes, settings.mode, memories[0])
        say(f"weights {decision.reason}; passes of {decision.budget.pass_tokens} tokens")
        bound_tensors()
        parts = build(read, decision, plan=plan, duty=duty)

    def settled() -> Budget:
        context = context_memory(device) if device.type == "cuda" else None
        if context is None and device.type == "cuda":
            assumed = memories[0].context / 1e9
            say(f"the driver does not tell the memory of this process: {assumed:.2f} GB beside tensors are assumed")
        if context is None or context <= memories[0].context or len(devices) > 1:
            return decision.budget
        budget = settle(sizes, settings.mode, decision, context=context)
        say(f"the CUDA context takes {context / 1e9:.2f} GB: passes of {budget.pass_tokens} tokens")
        return budget

    engine = prove(parts, folder=folder, settings=settings, decision=decision, dtype=dtype, say=say, settled=settled)
    if device.type == "cuda":
        bound_tensors()
        fill_a_pass(engine)
        bound_tensors()  # kernels that were compiled meanwhile are in the context
    return engine


def prove(
    parts: EngineParts,
    *,
    folder: CheckpointFolder,
    settings: EngineSettings,
    decision: ModeDecision,
    dtype: torch.dtype,
    say: Callable[[str], None],
    settled: Callable[[], Budget],
) -> TorchEngine:
    """Warm up under observation, fingerprint, self-test; `settled` gives the budget once libraries are in memory."""
    engine, anatomy = TorchEngine(parts), parts.anatomy
    num_layers = len(anatomy.layers)
    dtypes: list[WireDtype] = ["bfloat16", "float32"] if dtype is torch.float32 else ["bfloat16"]
    tests = SelfTestPlan(layers=_tested_layers(num_layers), dtype=dtypes[-1])
    all_planes = replace(tests, layers=(EMBEDDING, *range(num_layers)))
    replaced = apply_exact(anatomy, load_kernels(parts.device, dtype), device=parts.device)
    if replaced:
        say(f"in fewer passes over memory, bit for bit: {', '.join(replaced)}")
    plain = None
    if settings.options:
        say(f"switching on {', '.join(settings.options)}")
        pin_configurations()  # before anything runs; options bring kernels of their own
        (plain,) = states_of(engine, jobs_for(engine, all_planes)[:1])
        apply_options(anatomy, settings.options)
    tuners = pin_configurations()
    observation = Observation()
    say("warming up and observing kernels")
    with observing(observation):
        warm_up(engine, tests)
    budget = settled()
    parts.runner.adopt(budget)
    numerics = fingerprint(
        revision=folder.revision(),
        config=anatomy.config,
        layer_types=anatomy.layer_types[:num_layers],
        device=parts.device,
        compute_dtype=dtype,
        weights_mode=decision.mode,
        observation=observation,
        kernel_configs=ran_configurations(tuners),
        options=list(settings.options),
        quantization=_quantization(folder),
    )
    refuse_reference_kernels(numerics, allowed=settings.allow_reference_kernels)
    watch = KernelWatch(anatomy.model)
    say("running self-tests")
    results = run_self_tests(engine, tests)
    _refuse_wrong_rows(results)
    config = anatomy.config
    facts = TargetFacts(
        model=ModelInfo(
            id=settings.model_id or settings.model.resolve().name,
            revision=numerics.revision,
            config_sha256=folder.config_sha256,
            num_layers=len(anatomy.layer_types),
            hidden_size=int(config.hidden_size),
            vocab_size=int(config.vocab_size),
            stop_token_ids=list(folder.stop_token_ids),
        ),
        architecture=type(anatomy.model).__name__,
        layer_types=anatomy.layer_types,
        numerics=numerics,
        mode=decision.mode,
        pass_tokens=budget.pass_tokens,
        longest_tokens=budget.longest_tokens if parts.runner.takes_long_prompts else budget.device_tokens,
        mode_cannot=_mode_cannot(parts, num_layers),
        deepest_layer=num_layers - 1,
        dtypes=dtypes,
        has_head=parts.head is not None,
        can_generate=parts.head is not None and parts.can_generate,
        max_positions=int(getattr(config, "max_position_embeddings", 0) or 0),
        self_tests=results,
        noise_floor=noise_floor(engine, all_planes, plain=plain),
    )
    return TorchEngine(parts, facts=facts, watch=watch)


def _refuse_wrong_rows(results: list[SelfTest]) -> None:
    """Rows that depend on what shares the pass make every answer wrong: no service is better than that one."""
    for test in results:
        if test.status == "failed":
            raise InternalError(
                f"self-test {test.name} failed: {test.detail}; the service does not start", ErrorCode.INTERNAL
            )


def _mode_cannot(parts: EngineParts, num_layers: int) -> list[str]:
    cannot = []
    if num_layers < len(parts.anatomy.layer_types):
        cannot.append(f"layers above {num_layers - 1} are not loaded (--deepest-layer)")
    if parts.head is None:
        cannot += ["no logits summary, no agreement, no argmax self-test: the head is not loaded"]
    if parts.head is None or not parts.can_generate:
        cannot.append("no generation")
    return cannot


def _tested_layers(num_layers: int) -> tuple[int, ...]:
    """The embedding output, the first and the last layer, and some between."""
    step = max(1, num_layers // MAX_TESTED_LAYERS)
    return (EMBEDDING, *sorted({*range(0, num_layers, step), num_layers - 1}))


def _quantization(folder: CheckpointFolder) -> str | None:
    found: Any = folder.config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    return str(found.get("quant_method", "unknown"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
