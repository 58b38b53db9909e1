"""Runs the speculative loop of z-lab's released package: a program of the `dflash` environment.

    python reference_loop.py TARGET DRAFTER PROMPT_IDS.json OUT.json MAX_NEW_TOKENS STOP_ID...

Writes, for each prompt, the text of the package's loop (`dflash_generate`, float32, temperature 0), the tokens each of
its rounds added, and plain greedy decoding of the same target beside it. Nothing of this project is imported.
"""

import json
import sys
import time
from pathlib import Path

import dflash.model as package
import torch
from transformers import AutoModelForCausalLM


def main(*arguments: str) -> None:
    target_path, drafter_path, prompts, out, limit_text, *stop_texts = arguments
    limit, stops = int(limit_text), [int(stop) for stop in stop_texts]
    torch.set_num_threads(1)
    target = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()
    drafter = package.DFlashDraftModel.from_pretrained(drafter_path, dtype=torch.float32).eval()
    # The package reads its stopwatch through CUDA, and gives the rounds only together with its timings.
    package._cuda_time = time.perf_counter
    found = {}
    for name, ids in json.loads(Path(prompts).read_text()).items():
        tokens = torch.tensor([ids])
        # One block more than wanted: the package drafts a shorter block where the limit is near, which changes drafts.
        run = package.dflash_generate(
            drafter, target, tokens, limit + drafter.block_size, stops, temperature=0.0, return_stats=True
        )
        greedy = target.generate(tokens, max_new_tokens=limit, do_sample=False, eos_token_id=stops, pad_token_id=0)
        found[name] = {
            "output_ids": run.output_ids[0, len(ids) :].tolist(),
            "emitted": run.acceptance_lengths,
            "greedy_ids": greedy[0, len(ids) :].tolist(),
        }
        print(name, run.acceptance_lengths, flush=True)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
