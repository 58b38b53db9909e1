"""Drafting at real size on one GPU, with random weights: all anchors of one 2,048-token sample, and what it is held to.

    python tests/bench/h200_drafter.py --out h200_drafter.json            on the GPU, under a minute
    python tests/bench/h200_drafter.py --tiny --out /tmp/smoke.json       the same steps on a CPU, tiny

Needs torch and this checkout, nothing else; Triton is used where it is installed. Writes one JSON object: seconds of
all anchors at once and of its parts, of its own matrix products alone, of the same without the fused kernels, of a loop
of one anchor at a time with a key/value cache (a sample of the anchors, scaled to all), peak memory, agreement of the
ways, and the time of the other families at the same size. What was found is written after every part, and on SIGTERM.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("client", "services/drafter", "tests")]

from bench.drafter_loop import OneAnchorLoop, run_loop  # noqa: E402
from tauscope_drafter.families import registry  # noqa: E402
from tauscope_drafter.families.family import Shared  # noqa: E402
from tauscope_drafter.head import CHUNK_BYTES, Embedding, Head  # noqa: E402
from tauscope_drafter.kernels.availability import attention_name, has_kernels  # noqa: E402
from tauscope_drafter.ranking import plain_top_k, top_k  # noqa: E402
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, RopeSpec, Window  # noqa: E402
from tauscope_drafter.streamed_weights import StreamedWeights  # noqa: E402

TOP_K = 8
REPEATS = 3
LOOP_STRETCHES, LOOP_ANCHORS = 3, 8  # the one-anchor loop is timed at stretches of anchors along the sample
REAL = {"hidden": 5120, "inner": 17408, "layers": 5, "heads": 32, "kv": 8, "hd": 128, "vocab": 248320, "length": 2048}
TINY = {"hidden": 64, "inner": 128, "layers": 2, "heads": 4, "kv": 2, "hd": 16, "vocab": 512, "length": 96}
TAPS = (1, 16, 31, 46, 61)
CUT_VOCABULARY = 8  # EAGLE drafters rank an eighth of the vocabulary or less


def describe(family: str, size: dict[str, int], **changes: Any) -> DrafterSpec:
    """A drafter of `family` at a size."""
    layers = changes.pop("layers", size["layers"])
    windows = changes.pop("windows", (Window(),) * layers)
    rope = RopeSpec(1e7, changes.pop("rotated", size["hd"]))
    backbone = BackboneSpec(
        size["hidden"], size["inner"], layers, size["heads"], size["kv"], size["hd"], 1e-6, windows, rope
    )
    fields: dict[str, Any] = {
        "family": family,
        "format": "random",
        "layout": "fill-in",
        "block_size": 16,
        "drafts": 15,
        "taps": TAPS,
        "mask_token_id": 1,
        "vocab_size": size["vocab"],
        "draft_vocab_size": size["vocab"],
        "target_hidden_size": size["hidden"],
        "target_num_layers": 64,
        "backbone": backbone,
    }
    return DrafterSpec(**(fields | changes))


class Bench:
    """One machine, one size: shared tables, states, timing."""

    def __init__(self, size: dict[str, int], device: torch.device, dtype: torch.dtype) -> None:
        self.size, self.device, self.dtype = size, device, dtype
        self.generator = torch.Generator(device).manual_seed(0)
        self.table = self.random(size["vocab"], size["hidden"]).cpu()  # on the host, as the service keeps it
        self.head = self.random(size["vocab"], size["hidden"])
        self.states = self.random(len(TAPS), size["length"], size["hidden"], scale=1.0)
        self.ids = torch.randint(2, size["vocab"], (size["length"],), generator=self.generator, device=device)
        self.tokens = self.ids.tolist()
        self.anchors = list(range(1, size["length"]))

    def random(self, *shape: int, scale: float | None = None) -> Tensor:
        values = torch.randn(*shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return values.mul_(shape[-1] ** -0.5 if scale is None else scale)

    def shared(self, *, on_host: bool = False, rows: int | None = None) -> Shared:
        weight = self.head if rows is None else self.head[:rows]
        if on_host:
            weight = weight.cpu().pin_memory() if self.device.type == "cuda" else weight.double()
        ids = None if rows is None else torch.arange(rows)
        head = Head(weight, self.device, self.dtype, target_ids=ids, chunk_bytes=CHUNK_BYTES[self.device.type])
        norm = torch.ones(self.size["hidden"], device=self.device)
        return Shared(Embedding(self.table, self.device, self.dtype), head, self.device, self.dtype, norm)

    def network(self, spec: DrafterSpec, shared: Shared | None = None) -> Any:
        family = registry.family(spec.family)
        weights = {}
        for name, shape in family.tensor_shapes(spec).items():
            is_norm = len(shape) == 1 and "norm" in name
            weights[name] = torch.ones(shape, device=self.device, dtype=self.dtype) if is_norm else self.random(*shape)
        return family.Network(spec, weights, shared or self.shared())

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], Any], repeats: int = REPEATS, *, warm: bool = True) -> float:
        if warm:
            run()
        times = []
        for _ in range(repeats):
            self.sync()
            started = time.perf_counter()
            run()
            self.sync()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def draft_all(self, network: Any, step: int, anchors: list[int] | None = None) -> Tensor:
        context = network.fuse(self.states[: len(network.spec.taps)], self.ids)
        anchors = self.anchors if anchors is None else anchors
        parts = [
            network.draft(context, anchors[i : i + step], self.ids, top_k=TOP_K).top_ids
            for i in range(0, len(anchors), step)
        ]
        return torch.cat(parts)

    def peak_bytes(self, run: Callable[[], Any]) -> int:
        """Memory above what was there before, at the worst moment."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.sync()
        return torch.cuda.max_memory_allocated() - before


def products(bench: Bench, network: Any, step: int) -> Callable[[], None]:
    """The matrix products of `draft_all` at batches of `step` anchors, and nothing else."""
    w, spec = network._w, network.spec
    hidden, inner, heads = bench.size["hidden"], bench.size["inner"], bench.size["heads"] * bench.size["hd"]
    rows = step * spec.block_size
    x, wide, flat = (bench.random(rows, n) for n in (hidden, inner, heads))
    ctx = bench.random(bench.size["length"], hidden)
    features = bench.random(bench.size["length"], len(spec.taps) * hidden)
    at_once = CHUNK_BYTES[bench.device.type] // (bench.size["vocab"] * 12)  # as `Head` cuts the rows
    drafted = bench.random(min(step * spec.drafts, at_once - at_once % 256 if at_once > 256 else at_once), hidden)
    batches = -(-len(bench.anchors) // step)
    head_calls = round(len(bench.anchors) * spec.drafts / drafted.shape[0])

    def run() -> None:
        features @ w["fc.weight"].T
        for i in range(spec.layers.num_layers):
            at = f"layers.{i}"
            for name in ("k_proj", "v_proj"):
                ctx @ w[f"{at}.self_attn.{name}.weight"].T
        for _ in range(batches):
            for i in range(spec.layers.num_layers):
                at = f"layers.{i}"
                for name in ("q_proj", "k_proj", "v_proj"):
                    x @ w[f"{at}.self_attn.{name}.weight"].T
                flat @ w[f"{at}.self_attn.o_proj.weight"].T
                x @ w[f"{at}.mlp.gate_proj.weight"].T
                x @ w[f"{at}.mlp.up_proj.weight"].T
                wide @ w[f"{at}.mlp.down_proj.weight"].T
        for _ in range(head_calls):
            drafted @ bench.head.T

    return run


def flops(bench: Bench, spec: DrafterSpec) -> float:
    """Operations of the products, by count."""
    s, c = bench.size, spec.layers
    q, kv = s["heads"] * s["hd"], s["kv"] * s["hd"]
    layer = s["hidden"] * (2 * q + 2 * kv) + 3 * s["hidden"] * s["inner"]
    rows = len(bench.anchors) * spec.block_size
    context = s["length"] * (len(TAPS) * s["hidden"] ** 2 + c.num_layers * 2 * s["hidden"] * kv)
    head = len(bench.anchors) * spec.drafts * s["hidden"] * s["vocab"]
    return 2.0 * (rows * c.num_layers * layer + context + head)


def all_at_once(bench: Bench, report: dict[str, Any], network: Any) -> int:
    """The headline: all anchors, its bound and its memory. Gives the best number of anchors a batch."""
    spec = network.spec
    steps = (64, 128, 256, 512) if bench.device.type == "cuda" else (16, 32)
    sweep = {str(step): bench.seconds(lambda s=step: bench.draft_all(network, s)) for step in steps}
    step = min(steps, key=lambda s: sweep[str(s)])
    report["attention"] = attention_name(bench.device, bench.dtype)
    report["all_anchors_s"] = sweep[str(step)]
    report["all_anchors_by_batch_s"] = sweep
    report["anchors_per_batch"] = step
    report["anchors_per_s"] = len(bench.anchors) / sweep[str(step)]
    report["products_alone_s"] = bench.seconds(products(bench, network, step))
    report["ratio_to_products"] = report["all_anchors_s"] / report["products_alone_s"]
    report["tflop_by_count"] = flops(bench, spec) / 1e12
    report["peak_bytes_over_weights"] = bench.peak_bytes(lambda: bench.draft_all(network, step))
    report["network_bytes"] = sum(t.nbytes for t in network._w.values())
    report["head_bytes"] = bench.head.nbytes
    walk = bench.anchors[::6]
    report["walk_anchors"] = len(walk)
    report["walk_anchors_s"] = bench.seconds(lambda: bench.draft_all(network, step, walk))
    return step


def parts(bench: Bench, report: dict[str, Any], network: Any, step: int) -> None:
    """Where the time of one batch goes, and what the fused kernels save."""
    context = network.fuse(bench.states, bench.ids)
    batch = bench.anchors[-step:]
    rows = network.block(context, batch, bench.ids)[:, 1:].reshape(-1, bench.size["hidden"])
    some = rows[:1024]
    logits = some @ bench.head.T
    report["parts_of_one_batch_s"] = {
        "fuse_whole_sample": bench.seconds(lambda: network.fuse(bench.states, bench.ids)),
        "block": bench.seconds(lambda: network.block(context, batch, bench.ids)),
        "rank": bench.seconds(lambda: network._head.rank(rows, TOP_K)),
        "head_product_alone": bench.seconds(lambda: rows @ bench.head.T),
        "top_k_of_1024_rows": bench.seconds(lambda: top_k(logits, TOP_K)),
        "top_k_of_1024_rows_plain": bench.seconds(lambda: plain_top_k(logits, TOP_K)),
    }
    if has_kernels(bench.device, bench.dtype):
        network._one_kernel = False
        report["parts_of_one_batch_s"]["block_two_part"] = bench.seconds(
            lambda: network.block(context, batch, bench.ids)
        )
        report["all_anchors_two_part_attention_s"] = bench.seconds(lambda: bench.draft_all(network, step), 1)
        network._one_kernel = True


def against_loop(bench: Bench, report: dict[str, Any], network: Any, step: int) -> None:
    """A sample of anchors one at a time with a key/value cache, scaled to all of them."""
    loop = OneAnchorLoop(network.spec, network._w, bench.table, bench.head, capacity=bench.size["length"])
    last = len(bench.anchors) - LOOP_ANCHORS
    stretches = [bench.anchors[i * last // (LOOP_STRETCHES - 1) :][:LOOP_ANCHORS] for i in range(LOOP_STRETCHES)]
    seconds, found = [], []
    for stretch in stretches:
        run_loop(loop, bench.states, bench.tokens, stretch[:1], TOP_K)  # fills the cache, and warms up
        bench.sync()
        started = time.perf_counter()
        for p in stretch[1:]:
            loop.append(bench.states[:, loop.length : p])
            found.append(loop.draft(bench.tokens[p], TOP_K)[0])
        bench.sync()
        seconds.append((time.perf_counter() - started) / (len(stretch) - 1))
    rows = bench.random(network.spec.drafts, bench.size["hidden"], scale=1.0)
    logits = rows @ bench.head.T
    report["loop_s_per_anchor_by_stretch"] = seconds
    report["loop_anchors_timed"] = [[stretch[1], stretch[-1]] for stretch in stretches]
    report["loop_all_anchors_s_scaled"] = statistics.mean(seconds) * len(bench.anchors)
    report["ratio_loop_to_all_anchors"] = report["loop_all_anchors_s_scaled"] / report["all_anchors_s"]
    report["loop_parts_s"] = {
        "draft": bench.seconds(lambda: loop.draft(bench.tokens[1], TOP_K)),
        "head": bench.seconds(lambda: rows @ bench.head.T),
        "log_softmax": bench.seconds(lambda: logits.log_softmax(-1, dtype=torch.float32)),
        "topk": bench.seconds(lambda: logits.float().topk(TOP_K, -1)),
    }
    chosen = [p for stretch in stretches for p in stretch[1:]]
    together = bench.draft_all(network, step, chosen)
    report["top1_agreement_with_loop"] = float((together[..., 0] == torch.stack(found)[..., 0]).float().mean())


def streamed(bench: Bench, report: dict[str, Any], network: Any, step: int) -> None:
    """The head, and then everything, on the host; bit-equal to resident weights."""
    other = bench.network(network.spec, bench.shared(on_host=True))
    other._w = network._w
    some = bench.anchors[-4 * step :]
    resident = bench.draft_all(network, step, some)
    report["streamed_anchors"] = len(some)
    report["resident_some_anchors_s"] = bench.seconds(lambda: bench.draft_all(network, step, some), 1)
    report["head_streamed_some_anchors_s"] = bench.seconds(lambda: bench.draft_all(other, step, some), 1)
    other._w = StreamedWeights({name: tensor.cpu() for name, tensor in network._w.items()}, bench.device)
    report["all_streamed_some_anchors_s"] = bench.seconds(lambda: bench.draft_all(other, step, some), 1)
    report["all_streamed_peak_bytes"] = bench.peak_bytes(lambda: bench.draft_all(other, step, some))
    report["streamed_equals_resident"] = bool((bench.draft_all(other, step, some) == resident).all())


def exactness(bench: Bench, report: dict[str, Any]) -> None:
    """On this device: batches against single anchors, and this dtype against float32, sliding layers included."""
    small = {**bench.size, "hidden": 512, "inner": 1024, "heads": 8, "kv": 2, "hd": 128, "vocab": 8192, "length": 700}
    if bench.device.type != "cuda":
        small = {**TINY}
    worst: dict[str, dict[str, float]] = {"batch_to_single": {}, "to_float32": {}, "to_float32_two_part": {}}
    report["worst_logprob_difference"] = worst
    for name, window in (("full", Window()), ("sliding", Window(256, causal=True)), ("wide", Window(64))):
        exact: Tensor | None = None
        for dtype in (torch.float32, bench.dtype):
            little = Bench(small, bench.device, torch.float32)
            network = little.network(describe("dflash", small, windows=(window,) * small["layers"]))
            if dtype != torch.float32:  # the same weights and states, rounded
                rounded = {key: value.to(dtype) for key, value in network._w.items()}
                little.head, little.states, little.dtype = little.head.to(dtype), little.states.to(dtype), dtype
                network = type(network)(network.spec, rounded, little.shared())
            context = network.fuse(little.states, little.ids)
            chosen = little.anchors[:: max(1, len(little.anchors) // 97)]
            together = network.draft(context, chosen, little.ids, top_k=TOP_K).top_logprobs
            alone = [network.draft(context, [p], little.ids, top_k=TOP_K).top_logprobs for p in chosen[::4]]
            key = f"{name}_{str(dtype).removeprefix('torch.')}"
            worst["batch_to_single"][key] = float((together[::4] - torch.cat(alone)).abs().max())
            if exact is None:
                exact = together
            else:
                worst["to_float32"][key] = float((together - exact).abs().max())
                network._one_kernel = False
                parts = network.draft(context, chosen, little.ids, top_k=TOP_K).top_logprobs
                worst["to_float32_two_part"][key] = float((parts - exact).abs().max())


def other_families(bench: Bench, report: dict[str, Any], deadline: float) -> None:
    """The other families at the same size, free-running over the first anchors, scaled to all of them."""
    size, vocab = bench.size, bench.size["vocab"]
    cut = vocab // CUT_VOCABULARY
    switches = dict.fromkeys(
        ("norm_before_residual", "norm_output", "fc_norms", "input_norm", "fc_bias", "qk_norm"), False
    )
    eagle = {"layout": "sequential", "block_size": 8, "drafts": 7, "taps": TAPS[:3], "draft_vocab_size": cut}
    eagle["extras"] = {**switches, "head_norm": True}
    markov = {"rank": 256, "kind": "gated", "confidence": 0, "confidence_bias": False}
    selector = {"kernel": 2, "group": 16, "rank": 256, "max_top_k": 16}
    gru = {"state": 1024, "narrow": 256, "pure": 1}
    mtp = {"layout": "sequential", "block_size": 5, "drafts": 4, "taps": (63,), "extras": {"hidden": "post"}}
    cases: dict[str, tuple[DrafterSpec, int | None]] = {
        "dspark": (describe("dspark", size, layout="anchor-first", drafts=16, extras=markov), None),
        "domino": (describe("domino", size, extras=gru), None),
        "dflash2": (describe("dflash2", size, extras=selector), None),
        "eagle3": (describe("eagle3", size, layers=1, **eagle), cut),
        "peagle": (describe("peagle", size, layers=2, **eagle), cut),
        "mtp": (describe("mtp", size, layers=1, rotated=size["hd"] // 4, **mtp), None),
    }
    seconds = report.setdefault("other_families_all_anchors_s_scaled", {})
    step = 256 if bench.device.type == "cuda" else 16
    for name, (spec, rows) in cases.items():
        if time.monotonic() > deadline:
            report["left_out_for_time"] = [n for n in cases if n not in seconds]
            return
        network = bench.network(spec, bench.shared(rows=rows))
        batches = bench.anchors[: 4 * step]  # four batches; the time of all anchors follows by their number
        spent = bench.seconds(lambda n=network, b=batches: bench.draft_all(n, step, b), 1)
        seconds[name] = spent * len(bench.anchors) / len(batches)
        del network
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def measure(bench: Bench, report: dict[str, Any], deadline: float, save: Callable[[], None]) -> None:
    """All parts in the order of their weight, each saved as soon as it is known."""
    network = bench.network(describe("dflash", bench.size))
    step = all_at_once(bench, report, network)
    save()
    for name, part in (
        ("parts", lambda: parts(bench, report, network, step)),
        ("loop", lambda: against_loop(bench, report, network, step)),
        ("exactness", lambda: exactness(bench, report)),
        ("families", lambda: other_families(bench, report, deadline)),
        ("streamed", lambda: streamed(bench, report, network, step)),
    ):
        started = time.monotonic()
        if started > deadline:
            report.setdefault("left_out_for_time", []).append(name)
            continue
        try:
            part()
        except Exception as error:  # the other parts are worth having
            report.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
        report.setdefault("part_s", {})[name] = time.monotonic() - started
        save()


def main() -> None:
    """Measure, and write what was found even when a later part fails or the process is told to end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU: does the script run?")
    parser.add_argument("--max-seconds", type=float, default=55.0, help="start no further part after this time")
    options = parser.parse_args()
    started = time.monotonic()
    deadline = started + options.max_seconds
    device = torch.device("cpu" if options.tiny else "cuda")
    dtype = torch.float32 if options.tiny else torch.bfloat16
    report: dict[str, Any] = {
        "device": "cpu" if options.tiny else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "size": TINY if options.tiny else REAL,
        "block_size": 16,
        "top_k": TOP_K,
    }

    def save() -> None:
        report["script_s"] = time.monotonic() - started
        options.out.write_text(json.dumps(report, indent=2) + "\n")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit runs the `finally` below
    try:
        with torch.inference_mode():
            measure(Bench(TINY if options.tiny else REAL, device, dtype), report, deadline, save)
    finally:
        save()
        print(json.dumps(report, indent=2))
    if report.get("failed"):
        sys.exit(1)


if __name__ == "__main__":
    main()
