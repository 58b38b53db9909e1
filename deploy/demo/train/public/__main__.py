"""Entry point: ``python -m deploy.demo.train.public --target DIR --out DIR [--prompts FILE] [--device cpu] ..``."""

import argparse
import shlex
import sys
import time
from pathlib import Path

from deploy.demo.train.public.prompts import BUNDLED, read_prompts
from deploy.demo.train.public.settings import PublicPlan
from deploy.demo.train.settings import Budget, DrafterShape, Sampling

CPU_NEGATIVES = 3000
"""Enough that the right token has to beat likely ones; the whole head of 49,152 tokens would double a step."""
GPU_BATCH = 64


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command-line arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo.train.public", description="Train a DFlash drafter for a public model."
    )
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of a decoder-only model")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the drafter; an interrupted run goes on there"
    )
    parser.add_argument("--prompts", type=Path, default=BUNDLED, help="JSONL; split `train` is trained on")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--max-new-tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--taps", type=int, nargs="+", default=[], help="decoder layers to read; default: z-lab's")
    parser.add_argument("--mask-id", type=int, help="default: the mask token, or a special token in no answer")
    parser.add_argument("--block", type=int, default=8, help="anchor and masks")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--mlp", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--theta", type=float, default=1e6)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--sequences", type=int, default=4, help="answers a step")
    parser.add_argument("--anchors", type=int, default=24, help="anchors of each")
    parser.add_argument(
        "--negatives", type=int, help="tokens beside those of the answers in the softmax; default: 3000, all on a GPU"
    )
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> PublicPlan:
    """The plan that the arguments describe."""
    on_gpu = options.device == "cuda"
    negatives = options.negatives if options.negatives is not None or on_gpu else CPU_NEGATIVES
    return PublicPlan(
        drafter=DrafterShape(
            layers=options.layers,
            mlp=options.mlp,
            taps=tuple(options.taps),
            heads=options.heads,
            kv_heads=options.kv_heads,
            head_dim=options.head_dim,
            block=options.block,
            theta=options.theta,
        ),
        sampling=Sampling(options.sequences, options.anchors, options.rate, decay=7.0),
        budget=Budget(steps=options.steps),
        max_new_tokens=options.max_new_tokens,
        generate_batch=GPU_BATCH if on_gpu else 1,
        negatives=negatives,
        mask_id=options.mask_id,
    )


def main(arguments: list[str] | None = None) -> int:
    """Train; returns the exit status. A drafter that is there is not trained again."""
    start = time.monotonic()
    options = parse(arguments)

    def log(line: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}] {line}", flush=True)

    if (options.out / "model.safetensors").exists():
        log(f"{options.out} holds a finished drafter")
        return 0
    from deploy.demo.train.public.run import PublicRun
    from deploy.demo.train.public.target import load_target

    try:
        prompts = read_prompts(options.prompts)
        run = PublicRun(load_target(options.target, device=options.device), plan_of(options), options.out, log=log)
        # By name only: a card is published, the folders of a machine are not.
        given = [Path(a).name if "/" in a else a for a in (sys.argv[1:] if arguments is None else arguments)]
        run.run(prompts, prompts_file=options.prompts.name, arguments=shlex.join(given))
    except (OSError, ValueError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
