"""Entry point: ``python -m deploy.demo.train --work DIR [--plan smoke] [--device cpu] [--deadline SECONDS] [--archive
FILE]``.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from deploy.demo.train.plans import PLANS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.train", description="Train the demo models.")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for results; an interrupted run is taken up there"
    )
    parser.add_argument("--plan", choices=list(PLANS), default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--deadline", type=float, help="seconds after which no phase is started")
    parser.add_argument("--only", nargs="+", help="run only these phases, on what earlier ones left in the work folder")
    parser.add_argument("--archive", type=Path, help="write the bundle as FILE.000, FILE.001, .. after every phase")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe; returns the exit status."""
    start = time.monotonic()
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    making_data = None
    if not (options.work / "data" / "record.json").exists():
        command = [
            sys.executable,
            "-m",
            "deploy.demo.train.prepare",
            "--work",
            str(options.work),
            "--plan",
            options.plan,
        ]
        making_data = subprocess.Popen(command)
    if options.device == "cuda":
        from deploy.demo.train.kernels import pin_autotuners

        pin_autotuners()  # before anything imports fla
    from deploy.demo.train.phases import Recipe

    with (options.work / "run.log").open("a", encoding="utf-8") as file:

        def log(line: str) -> None:
            text = f"[{time.monotonic() - start:6.1f}] {line}"
            print(text, flush=True)
            file.write(text + "\n")
            file.flush()

        recipe = Recipe(
            PLANS[options.plan](),
            options.work,
            device=options.device,
            log=log,
            deadline_s=options.deadline,
            archive_to=options.archive,
            only=tuple(options.only) if options.only else None,
            wait_for_data=making_data.wait if making_data else None,
            start=start,
        )
        return 0 if recipe.run() else 1


if __name__ == "__main__":
    sys.exit(main())
