"""Drafting at real size on one GPU, with random weights: all anchors of one 2,048-token sample, and what it is held to.

    python tests/bench/h200_drafter.py --out h200_drafter.json            on the GPU, under four minutes
    python tests/bench/h200_drafter.py --tiny --out /tmp/smoke.json       the same steps on a CPU, tiny

Needs torch and this checkout, nothing else. Writes one JSON object: seconds of all anchors at once and of its parts,
of its own matrix products alone, of a loop of one anchor at a time with a key/value cache, peak memory, agreement of
the two ways, and the time of the other families at the same size.
"""

import argparse
import json
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
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, RopeSpec, Window  # noqa: E402
from tauscope_drafter.streamed_weights import StreamedWeights  # noqa: E402

TOP_K = 8
REPEATS = 3
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
        self.table = self.random(size["vocab"], size["hidden"])
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
    drafted = bench.random(
        min(step * spec.drafts, CHUNK_BYTES[bench.device.type] // (bench.size["vocab"] * 12)), hidden
    )
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


def main_numbers(bench: Bench, report: dict[str, Any]) -> None:
    """All anchors at once: the headline, its parts, its bound, the loop."""
    spec = describe("dflash", bench.size)
    network = bench.network(spec)
    steps = (32, 64, 128, 256) if bench.device.type == "cuda" else (16, 32)
    sweep = {str(step): bench.seconds(lambda s=step: bench.draft_all(network, s)) for step in steps}
    step = min(steps, key=lambda s: sweep[str(s)])
    report["all_anchors_s"] = sweep[str(step)]
    report["all_anchors_by_batch_s"] = sweep
    report["anchors_per_batch"] = step
    report["anchors_per_s"] = len(bench.anchors) / sweep[str(step)]
    report["products_alone_s"] = bench.seconds(products(bench, network, step))
    report["ratio_to_products"] = report["all_anchors_s"] / report["products_alone_s"]
    report["tflop_by_count"] = flops(bench, spec) / 1e12
    report["peak_bytes_over_weights"] = bench.peak_bytes(lambda: bench.draft_all(network, step))
    report["network_bytes"] = sum(t.nbytes for t in network._w.values())
    report["table_and_head_bytes"] = bench.table.nbytes + bench.head.nbytes
    context = network.fuse(bench.states, bench.ids)
    batch = bench.anchors[-step:]
    rows = network.block(context, batch, bench.ids)[:, 1:].reshape(-1, bench.size["hidden"])
    report["parts_of_one_batch_s"] = {
        "fuse_whole_sample": bench.seconds(lambda: network.fuse(bench.states, bench.ids)),
        "block": bench.seconds(lambda: network.block(context, batch, bench.ids)),
        "rank": bench.seconds(lambda: network._head.rank(rows, TOP_K)),
        "head_product_alone": bench.seconds(lambda: rows @ bench.head.T),
    }
    walk = bench.anchors[::6]
    report["walk_anchors"] = len(walk)
    report["walk_anchors_s"] = bench.seconds(lambda: bench.draft_all(network, step, walk))
    loop = OneAnchorLoop(spec, network._w, bench.table, bench.head, capacity=bench.size["length"])
    run_loop(loop, bench.states, bench.tokens, bench.anchors[:32], TOP_K)
    one_by_one: list[Tensor] = []
    report["one_anchor_loop_s"] = bench.seconds(
        lambda: one_by_one.append(run_loop(loop, bench.states, bench.tokens, bench.anchors, TOP_K)), 1, warm=False
    )
    report["ratio_loop_to_all_anchors"] = report["one_anchor_loop_s"] / report["all_anchors_s"]
    together = bench.draft_all(network, step)
    report["top1_agreement_with_loop"] = float((together[..., 0] == one_by_one[0][..., 0]).float().mean())
    streamed = bench.network(spec, bench.shared(on_host=True))
    report["head_streamed_from_host_s"] = bench.seconds(lambda: bench.draft_all(streamed, step), 1)
    host_weights = {name: tensor.cpu() for name, tensor in network._w.items()}
    streamed._w = StreamedWeights(host_weights, bench.device)
    report["all_streamed_from_host_s"] = bench.seconds(lambda: bench.draft_all(streamed, 2 * step), 1)
    report["all_streamed_peak_bytes"] = bench.peak_bytes(lambda: bench.draft_all(streamed, step))
    same = bench.draft_all(streamed, step) == bench.draft_all(network, step)
    report["streamed_equals_resident"] = bool(same.all())


def exactness(bench: Bench, report: dict[str, Any]) -> None:
    """On this device in float32: batches against single anchors, sliding layers included."""
    small = {**bench.size, "hidden": 512, "inner": 1024, "heads": 8, "kv": 2, "hd": 128, "vocab": 8192, "length": 700}
    if bench.device.type != "cuda":
        small = {**TINY}
    worst: dict[str, float] = {}
    for name, window in (("full", Window()), ("sliding", Window(256, causal=True)), ("wide", Window(64))):
        for dtype in (torch.float32, bench.dtype):
            little = Bench(small, bench.device, dtype)
            network = little.network(describe("dflash", small, windows=(window,) * small["layers"]))
            context = network.fuse(little.states, little.ids)
            chosen = little.anchors[:: max(1, len(little.anchors) // 97)]
            together = network.draft(context, chosen, little.ids, top_k=TOP_K).top_logprobs
            alone = [network.draft(context, [p], little.ids, top_k=TOP_K).top_logprobs for p in chosen]
            key = f"{name}_{str(dtype).removeprefix('torch.')}"
            worst[key] = float((together - torch.cat(alone)).abs().max())
    report["worst_logprob_difference_batch_to_single"] = worst


def other_families(bench: Bench, report: dict[str, Any], deadline: float) -> None:
    """All anchors of the other families at the same size, as far as the time goes."""
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
    seconds = report.setdefault("other_families_all_anchors_s", {})
    step = 128 if bench.device.type == "cuda" else 16
    for name, (spec, rows) in cases.items():
        if time.monotonic() > deadline:
            report["left_out_for_time"] = [n for n in cases if n not in seconds]
            return
        network = bench.network(spec, bench.shared(rows=rows))
        seconds[name] = bench.seconds(lambda n=network: bench.draft_all(n, step), 1)
        del network
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    """Measure, and write what was found even when a later part fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU: does the script run?")
    parser.add_argument("--max-seconds", type=float, default=200.0, help="start no further part after this time")
    options = parser.parse_args()
    deadline = time.monotonic() + options.max_seconds
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
    started = time.monotonic()
    try:
        with torch.inference_mode():
            bench = Bench(TINY if options.tiny else REAL, device, dtype)
            main_numbers(bench, report)
            exactness(bench, report)
            other_families(bench, report, deadline)
    finally:
        report["script_s"] = time.monotonic() - started
        options.out.write_text(json.dumps(report, indent=2) + "\n")
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
