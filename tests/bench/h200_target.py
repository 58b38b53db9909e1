"""Measures the target engine in the shape of a 27B hybrid, random weights, on one GPU. Writes one JSON file.

    python3 tests/bench/h200_target.py --out DIR [--only resident,streamed] [--options] [--tiny]

Run from the root of the repository; needs torch, transformers, flash-linear-attention, and the packages of the wire.
`--tiny` runs every part on a CPU in seconds, to see that the script works. Ratios compare things measured in one run.
"""

import argparse
import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("client", "services/target_hidden", "services/serving")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from tauscope_target.anatomy import Anatomy  # noqa: E402
from tauscope_target.duty import SHARED_DUTY, Duty  # noqa: E402
from tauscope_target.engine import EngineParts, TorchEngine  # noqa: E402
from tauscope_target.exact import apply_exact, load_kernels  # noqa: E402
from tauscope_target.fitting import fit_cap  # noqa: E402
from tauscope_target.fused import FLA_CONVOLUTION, FUSED, apply_options  # noqa: E402
from tauscope_target.jobs import HiddenJob, HiddenResult, LogitsSpec  # noqa: E402
from tauscope_target.kernels import (  # noqa: E402
    Observation,
    layer_scopes,
    observing,
    pin_configurations,
    ran_configurations,
)
from tauscope_target.loading import LoadingPlan, assemble  # noqa: E402
from tauscope_target.memory import BLOCK_ELEMENTS, BLOCK_VOCAB, Budget, ModelSizes  # noqa: E402
from tauscope_target.modes import ModeDecision, build  # noqa: E402
from tauscope_target.ranking import PlainRanking, Ranking, start_ranking  # noqa: E402
from tauscope_target.ring import StreamedWeights  # noqa: E402
from tauscope_target.selftests import SelfTestPlan, noise_floor, relative_difference, run_self_tests  # noqa: E402
from tauscope_target.sizes import sizes_of_shapes  # noqa: E402
from tauscope_target.skeleton import build_skeleton  # noqa: E402

GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """What is measured: the 27B shape, or a tiny stand-in."""

    config: Mapping[str, Any]
    taps: tuple[int, ...]
    pass_tokens: int
    sequence: int
    sizes: tuple[int, ...]
    long_tokens: tuple[int, ...]
    chunk: int
    repeats: int
    neighbour_s: float
    caps_gib: tuple[float, ...]


LARGE = Shape(
    config={
        "vocab_size": 248_320,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": False,
    },
    taps=(1, 16, 31, 46, 61),
    pass_tokens=16_384,
    sequence=2048,
    sizes=(512, 1024, 2048, 4096, 8192, 16_384, 32_768),
    long_tokens=(32_768, 65_536, 131_072),
    chunk=16_384,
    repeats=3,
    neighbour_s=8.0,
    caps_gib=(2.5, 3.0, 4.0),
)
TINY = replace(
    LARGE,
    config={
        **LARGE.config,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    taps=(1, 3, 5),
    pass_tokens=256,
    sequence=64,
    sizes=(64, 128, 256),
    long_tokens=(256, 512),
    chunk=128,
    repeats=1,
    neighbour_s=0.3,
    caps_gib=(0.4,),
)


class RandomSource:
    """Stands in for a checkpoint: random weights made on the device, one tensor per shape, copied into place."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        self._device = device
        self._made: dict[tuple[tuple[int, ...], float], torch.Tensor] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read_into(self, name: str, target: torch.Tensor) -> None:
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "A_log":
            target.copy_(torch.linspace(0, 2.77, target.numel()))  # log of 1..16
        elif leaf == "dt_bias":
            target.fill_(-4.6)  # dt of 0.01: states that last
        elif target.ndim < 2:
            target.zero_() if not name.endswith("linear_attn.norm.weight") else target.fill_(1.0)
        else:
            shape = tuple(target.shape)
            scale = 1.0 if "embed" in name else 1.0 / float(np.sqrt(np.prod(shape[1:])))
            if (shape, scale) not in self._made:
                random = torch.Generator(self._device).manual_seed(sum(shape))  # the same weights in every mode
                made = torch.randn(shape, generator=random, device=self._device, dtype=target.dtype)
                self._made[shape, scale] = made * scale
            target.copy_(self._made[shape, scale])


def random_model(shape: Shape, plan: LoadingPlan) -> Anatomy:
    from transformers import Qwen3_5TextConfig

    model = build_skeleton(Qwen3_5TextConfig(**shape.config), plan.dtype)
    return assemble(model, RandomSource(model, plan.device), plan)


def start(shape: Shape, mode: str, device: torch.device, *, with_head: bool, duty: float = 1.0) -> EngineParts:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    plan = LoadingPlan(dtype=dtype, device=device, with_head=with_head)
    budget = Budget(shape.pass_tokens, shape.chunk, None, 0)
    decision = ModeDecision(mode, budget, "")  # type: ignore[arg-type]
    return build(lambda chosen: random_model(shape, chosen), decision, plan=plan, duty=Duty(duty))


def jobs(
    shape: Shape, tokens: int, *, sequence: int | None = None, last: int | None = None, logits: LogitsSpec | None = None
) -> list[HiddenJob]:
    """Sequences of `sequence` tokens that make up a pass; `last` takes only the last rows."""
    length = min(sequence or shape.sequence, tokens)
    random = np.random.default_rng(0)
    made = []
    for _ in range(max(1, tokens // length)):
        ids = random.integers(0, shape.config["vocab_size"], length, dtype=np.int32)
        made.append(HiddenJob(ids, shape.taps, False, length - (last or length), length, logits=logits))
    return made


def run(engine: TorchEngine, wanted: list[HiddenJob]) -> list[HiddenResult]:
    found = []
    for outcome in engine.execute(wanted):
        if not isinstance(outcome, HiddenResult):
            raise RuntimeError(f"{type(outcome).__name__}: {outcome}")
        found.append(outcome)
    return found


def timed(device: torch.device, work: Callable[[], Any], repeats: int, *, warm: bool = True) -> dict[str, float]:
    """Fastest and median seconds after one warm-up, and the allocator's peak."""
    if warm:
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    found = {"best_s": min(seconds), "median_s": float(np.median(seconds))}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {
            "peak_allocated_gib": torch.cuda.max_memory_allocated() / GIB,
            "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
            "device_used_gib": (total - free) / GIB,
        }
    return found


def naive(parts: EngineParts, shape: Shape) -> Callable[[], Any]:
    """What people write: all hidden states and logits, to pageable memory."""
    wanted = jobs(shape, shape.pass_tokens)
    ids = torch.from_numpy(np.stack([job.token_ids for job in wanted]).astype(np.int64)).to(parts.device)

    def work() -> Any:
        with torch.inference_mode():
            out = parts.anatomy.model(input_ids=ids, output_hidden_states=True, use_cache=False)
            return [out.hidden_states[tap + 1].cpu() for tap in shape.taps]

    return work


def matrices_only(parts: EngineParts, shape: Shape) -> Callable[[], Any]:
    """All matrix products of the layers that an extraction runs, on inputs that are there already."""
    linears = [
        module
        for step in list(parts.anatomy.layers)[: shape.taps[-1] + 1]
        for module in step.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    dtype = linears[0].weight.dtype
    inputs = {
        width: torch.randn(shape.pass_tokens, width, device=parts.device, dtype=dtype)
        for width in {module.in_features for module in linears}
    }

    def work() -> None:
        with torch.inference_mode():
            for module in linears:
                module(inputs[module.in_features])

    return work


def measure_resident(
    shape: Shape, device: torch.device, report: dict[str, Any], *, with_options: bool, skipped: frozenset[str]
) -> None:
    parts = start(shape, "resident", device, with_head=True)
    engine = TorchEngine(parts)
    whole = jobs(shape, shape.pass_tokens)
    pin_configurations()
    run(engine, jobs(shape, shape.sequence))
    report["naive"] = timed(device, naive(parts, shape), max(1, shape.repeats - 1))  # transformers' own functions
    report["extraction_by_transformers"] = timed(device, lambda: run(engine, whole), shape.repeats)
    unreplaced = [digest(result.states) for result in run(engine, whole)]
    begun = time.perf_counter()
    kernels = load_kernels(device, next(parts.anatomy.model.parameters()).dtype)
    report["replaced_bit_for_bit"] = apply_exact(parts.anatomy, kernels, device=device)
    tuners = pin_configurations()
    observation = Observation()
    with observing(observation):
        run(engine, jobs(shape, shape.sequence))
    report["first_pass_s"] = time.perf_counter() - begun
    report["linear_attention"] = observation.linear_attention_name
    report["convolution"] = observation.convolution_name
    report["kernel_configs"] = ran_configurations(tuners)
    plan = SelfTestPlan(layers=(-1, 0, *shape.taps, len(parts.anatomy.layers) - 1), dtype="bfloat16")
    report["self_tests"] = [test.model_dump() for test in run_self_tests(engine, plan)]
    report["noise_floor"] = noise_floor(engine, plan)
    report["equal_to_transformers"] = [digest(result.states) for result in run(engine, whole)] == unreplaced
    report["extraction"] = timed(device, lambda: run(engine, whole), shape.repeats)
    asked = jobs(shape, shape.pass_tokens, logits=LogitsSpec(8, next_token=True))
    report["extraction_with_logits"] = timed(device, lambda: run(engine, asked), shape.repeats)
    report["ranking"] = measure_ranking(shape, parts)
    if "chunks" not in skipped:
        one = jobs(shape, shape.pass_tokens, sequence=shape.pass_tokens)
        report["extraction_one_sequence"] = timed(device, lambda: run(engine, one), shape.repeats)
        for chunk in (shape.chunk // 2, shape.chunk // 4):
            parts.runner.chunk_tokens = chunk
            report[f"extraction_chunks_of_{chunk}"] = timed(device, lambda: run(engine, whole), shape.repeats)
    parts.runner.chunk_tokens = shape.chunk
    report["table"] = {}
    for tokens in shape.sizes:
        sized = jobs(shape, tokens)
        report["table"][str(tokens)] = timed(device, lambda sized=sized: run(engine, sized), shape.repeats)
    report["matrices_only"] = timed(device, matrices_only(parts, shape), shape.repeats)
    report["speedup_over_naive"] = report["naive"]["best_s"] / report["extraction"]["best_s"]
    report["share_of_matrix_bound"] = report["matrices_only"]["best_s"] / report["extraction"]["best_s"]
    parts.runner.chunk_tokens = shape.chunk // 4
    report["long"] = {}
    for tokens in () if "long" in skipped else shape.long_tokens:
        wanted = jobs(shape, tokens, sequence=tokens, last=min(64, tokens))
        report["long"][str(tokens)] = timed(device, lambda wanted=wanted: run(engine, wanted), 1, warm=False)
    report["check"] = [digest(result.states) for result in run(engine, jobs(shape, shape.pass_tokens))]
    parts.runner.chunk_tokens = shape.chunk
    if with_options:
        measure_options(parts, engine, shape, report)


def measure_ranking(shape: Shape, parts: EngineParts) -> dict[str, Any]:
    """Best 8, log-sum-exp and next logit of a streamed head's rows over an eighth of the vocabulary, both ways."""
    width = BLOCK_VOCAB["streamed"]
    rows = BLOCK_ELEMENTS["streamed"] // width
    logits = torch.randn(rows, width, device=parts.device, dtype=next(parts.anatomy.model.parameters()).dtype)
    next_ids = torch.zeros(rows, dtype=torch.int64, device=parts.device)
    starts = range(0, shape.config["vocab_size"] // 8, width)

    def work(begin: Callable[[], Ranking]) -> None:
        with torch.inference_mode():
            ranking = begin()
            for start in starts:
                ranking.add(logits, start)
            ranking.rows()

    ways = {
        "as_served": lambda: start_ranking(next_ids, 8, logits.dtype),
        "by_torch": lambda: PlainRanking(next_ids, 8),
    }
    found: dict[str, Any] = {
        name: timed(parts.device, lambda begin=begin: work(begin), shape.repeats) for name, begin in ways.items()
    }
    found["ratio"] = found["as_served"]["best_s"] / found["by_torch"]["best_s"]
    return found


def measure_options(parts: EngineParts, engine: TorchEngine, shape: Shape, report: dict[str, Any]) -> None:
    """Named faster paths, one by one and together: time, and deviation from the default path."""
    wanted = jobs(shape, shape.pass_tokens)
    plain = run(engine, wanted)[0].states
    scopes = [scope for scope in layer_scopes(parts.anatomy.model) if "causal_conv1d_fn" in scope]
    bound = [scope["causal_conv1d_fn"] for scope in scopes]
    report["options"] = {}
    try:
        for name, option in ((FLA_CONVOLUTION,) * 2, (FUSED,) * 2, (f"{FUSED} and {FLA_CONVOLUTION}", FLA_CONVOLUTION)):
            if parts.device.type == "cpu" and option == FLA_CONVOLUTION:
                continue
            begun = time.perf_counter()
            apply_options(parts.anatomy, [option])
            pin_configurations()
            run(engine, wanted)
            row: dict[str, Any] = {"first_pass_s": time.perf_counter() - begun}
            row |= timed(parts.device, lambda: run(engine, wanted), shape.repeats)
            observation = Observation()
            with observing(observation):
                states = run(engine, wanted)[0].states
            row["ran"] = [observation.linear_attention_name, observation.convolution_name]
            row["deviation"] = [relative_difference(a, b) for a, b in zip(states, plain, strict=True)]
            row["share_of_matrix_bound"] = report["matrices_only"]["best_s"] / row["best_s"]
            row["speedup_over_naive"] = report["naive"]["best_s"] / row["best_s"]
            report["options"][name] = row
    finally:
        for scope, function in zip(scopes, bound, strict=True):
            scope["causal_conv1d_fn"] = function


def digest(states: Any) -> str:
    import xxhash

    return str(xxhash.xxh3_128(states.view(np.uint8).tobytes()).hexdigest())


def measure_streamed(
    shape: Shape,
    device: torch.device,
    report: dict[str, Any],
    resident: Mapping[str, Any],
    *,
    skipped: frozenset[str],
) -> None:
    begun = time.perf_counter()
    parts = start(shape, "streamed", device, with_head=True)
    report["load_and_pin_s"] = time.perf_counter() - begun
    kernels = load_kernels(device, next(parts.anatomy.model.parameters()).dtype)
    apply_exact(parts.anatomy, kernels, device=device)
    engine = TorchEngine(parts)
    weights: Any = parts.runner._weights  # the benchmark looks inside
    num_layers = shape.taps[-1] + 1
    report["streamed_bytes"] = weights.bytes_of(num_layers)
    report["ring_gib"] = weights.buffer_bytes / GIB
    pin_configurations()
    run(engine, jobs(shape, shape.sequence))
    report["copy_only"] = timed(device, lambda: copies(weights, num_layers, device), shape.repeats)
    floor = report["copy_only"]["best_s"]
    report["bus_gb_s"] = report["streamed_bytes"] / floor / 1e9
    parts.runner.chunk_tokens = shape.chunk // 4
    report["equal_to_resident"] = [
        digest(r.states) for r in run(engine, jobs(shape, shape.pass_tokens))
    ] == resident.get("check")
    report["table"] = {}
    for tokens in () if "table" in skipped else shape.sizes:
        parts.runner.chunk_tokens = min(shape.chunk, tokens)
        report["table"][str(tokens)] = against_bound(engine, shape, tokens, resident, floor)
    report["neighbour"] = neighbour(shape, engine, device)
    parts.runner._duty = Duty(1.0)
    report["capped"] = {}
    context = 0
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        context = total - free - torch.cuda.memory_reserved()
    report["context_gib"] = context / GIB
    weights = None
    for cap_gib in shape.caps_gib:
        report["capped"][str(cap_gib)] = capped(
            shape, engine, cap=int(cap_gib * GIB), context=context, resident=resident, floor=floor
        )
        print(f"cap {cap_gib}: {report['capped'][str(cap_gib)]}", flush=True)


def against_bound(
    engine: TorchEngine, shape: Shape, tokens: int, resident: Mapping[str, Any], floor: float
) -> dict[str, float]:
    """One size of pass, against the larger of the resident time and the time of the copies."""
    sized = jobs(shape, tokens)
    row = timed(engine.parts.device, lambda: run(engine, sized), shape.repeats)
    kept = resident.get("table", {}).get(str(tokens))
    if kept:
        row["ratio_to_bound"] = row["best_s"] / max(kept["best_s"], floor)
    return row


def sizes_of(shape: Shape, dtype: torch.dtype) -> ModelSizes:
    """Sizes of the model, head included."""
    from transformers import Qwen3_5TextConfig

    config = Qwen3_5TextConfig(**shape.config)
    named = build_skeleton(config, dtype).named_parameters()
    shapes = {name: tuple(parameter.shape) for name, parameter in named}
    return sizes_of_shapes(shapes, config.to_dict(), itemsize=dtype.itemsize, with_head=True)


def capped(
    shape: Shape, engine: TorchEngine, *, cap: int, context: int, resident: Mapping[str, Any], floor: float
) -> dict[str, Any]:
    """Passes as the service would choose them under a cap on the memory of the process, and one long prompt."""
    runner: Any = engine.parts.runner
    device = engine.parts.device
    sizes = sizes_of(shape, next(engine.parts.anatomy.model.parameters()).dtype)
    budget = fit_cap(sizes, "streamed", cap, context_bytes=context)
    if budget is None:
        return {"refused": True}
    found: dict[str, Any] = {"budget": asdict(budget)}
    placement = runner._weights._placement
    weights = StreamedWeights(engine.parts.anatomy, placement, device=device, shape=budget.ring)
    runner._weights = runner._runs._weights = weights
    runner.adopt(budget)
    del weights
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, (cap - context) / total))
    try:
        sizes_in_table = [tokens for tokens in shape.sizes if tokens <= budget.pass_tokens]
        for tokens in sizes_in_table[-3:]:
            found[f"pass of {tokens}"] = against_bound(engine, shape, tokens, resident, floor)
        largest = sizes_in_table[-1]
        for name, last in (("one row of each", 1), ("all rows", None)):
            wanted = jobs(shape, largest, last=last, logits=LogitsSpec(8, next_token=True))
            row = timed(device, lambda wanted=wanted: run(engine, wanted), shape.repeats)
            found[f"pass of {largest}, logits of {name}"] = row
        is_smallest = cap == int(min(shape.caps_gib) * GIB)
        for tokens in shape.long_tokens if is_smallest else ():
            if tokens <= (budget.longest_tokens or tokens):
                wanted = jobs(shape, tokens, sequence=tokens, last=min(64, tokens))
                found[f"prompt of {tokens}"] = timed(device, lambda wanted=wanted: run(engine, wanted), 1, warm=False)
    except RuntimeError as error:
        found["error"] = str(error)[:300]
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def copies(weights: Any, count: int, device: torch.device) -> None:
    """Bring all layers to the device, with nothing to compute."""
    for index in range(count):
        weights.acquire(index, deepest=count - 1)
        weights.release(index)
    if device.type == "cuda":
        torch.cuda.synchronize()


def neighbour(shape: Shape, engine: TorchEngine, device: torch.device) -> dict[str, Any]:
    """A second process with a steady load on the card: its speed alone, beside full duty, beside the shared duty."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    command = [sys.executable, __file__, "--neighbour", *(["--tiny"] if device.type == "cpu" else [])]
    found: dict[str, Any] = {}
    tokens = shape.pass_tokens // 2
    wanted = jobs(shape, tokens)
    engine.parts.runner.chunk_tokens = tokens // 4
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it says when its memory is taken and its first products are done
        windows = {}
        for name, duty in (("alone", None), ("full_duty", 1.0), ("shared_duty", SHARED_DUTY)):
            begun = time.time()
            passes = 0
            engine.parts.runner._duty = Duty(duty or 1.0)
            while time.time() - begun < shape.neighbour_s:
                if duty is None:
                    time.sleep(shape.neighbour_s)
                else:
                    run(engine, wanted)
                    passes += 1
            windows[name] = (begun, time.time())
            found[name] = {"our_tokens_per_s": passes * tokens / (time.time() - begun)}
        process.stdin.close()
        marks = [float(line) for line in process.stdout.read().split()]
    if process.returncode != 0:
        raise RuntimeError(f"the neighbour failed with {process.returncode}")
    for name, (begun, ended) in windows.items():
        count = sum(begun <= mark < ended for mark in marks)
        found[name]["neighbour_per_s"] = count / (ended - begun)
    for name in ("full_duty", "shared_duty"):
        found[name]["slowdown"] = found["alone"]["neighbour_per_s"] / max(found[name]["neighbour_per_s"], 1e-9) - 1
    return found


def be_neighbour(tiny: bool) -> None:
    """Hold nearly all free memory and multiply matrices until standard input closes; print the time of each product."""
    import threading

    device = torch.device("cpu" if tiny else "cuda")
    size = 256 if tiny else 8192
    held = None
    if not tiny:
        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(max(0, free - 4 * GIB), dtype=torch.uint8, device=device)
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    marks = []
    while not done.is_set():
        left @ left
        if not tiny:
            torch.cuda.synchronize()
        marks.append(time.time())
        if len(marks) == 10:
            print("ready", flush=True)
    print("\n".join(f"{mark:.6f}" for mark in marks[10:]))
    del held


def stop(*_: object) -> None:
    """Out of time: what was measured so far is written."""
    raise TimeoutError("stopped before the end")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path())
    options.add_argument("--only", default="resident,streamed")
    options.add_argument("--options", action="store_true", help="also the named faster paths (compiles)")
    options.add_argument("--skip", default="", help="of the resident part: chunks, long; of the streamed part: table")
    options.add_argument("--resident", type=Path, help="file of an earlier run to compare streamed passes with")
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--neighbour", action="store_true")
    arguments = options.parse_args()
    if arguments.neighbour:
        be_neighbour(arguments.tiny)
        return
    shape = TINY if arguments.tiny else LARGE
    skipped = frozenset(arguments.skip.split(","))
    device = torch.device("cpu") if arguments.tiny else torch.device("cuda", 0)
    import transformers

    report: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "device": "cpu" if arguments.tiny else torch.cuda.get_device_name(device),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "shape": dict(shape.config),
        "taps": shape.taps,
        "pass_tokens": shape.pass_tokens,
        "resident": json.loads(arguments.resident.read_text())["resident"] if arguments.resident else {},
        "streamed": {},
    }
    signal.signal(signal.SIGTERM, stop)
    begun = time.perf_counter()
    for part in arguments.only.split(","):
        try:
            if part == "resident":
                measure_resident(shape, device, report["resident"], with_options=arguments.options, skipped=skipped)
            else:
                measure_streamed(shape, device, report["streamed"], report["resident"], skipped=skipped)
        except Exception as error:
            import traceback

            report[part]["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        report["elapsed_s"] = time.perf_counter() - begun
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "h200_target.json").write_text(json.dumps(report, indent=1))
        print(f"{part}: {report['elapsed_s']:.0f} s", flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
