"""Trains a small DFlash drafter for a small target, on a CPU, in minutes: a program of the `dflash` environment.

    python train_drafter.py TARGET OUT PROMPTS.json [STEPS]

The network is that of z-lab's released package, so nothing of this project takes part in making the drafter that this
project is then compared on. It is trained to know the greedy answers to the given prompts almost by heart: enough to
have rounds of every length, useless for anything else.

Training is teacher-forced as in the references: one prefill gives the target's states; every response position is an
anchor; the block of anchor p sees context rows 0..p-1 and itself; labels are the following tokens.
"""

import json
import sys
import time
from pathlib import Path

import torch
from dflash.model import DFlashDraftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

BLOCK = 8
TAPS = [1, 9, 17, 25]
MASK_ID = 3  # a special token of SmolLM2 that no text contains
RESPONSE_TOKENS = 96
LEARNING_RATE = 2e-3
DECAY_ROWS = 7.0  # loss weight exp(-(k-1)/7) of row k, as DFlash is trained
NEGATIVES = 3000  # ids beside those of the data in the training softmax: the whole head would cost most of the time
STEPS = 140  # more, and it knows the answers so well that every round accepts all: nothing to compare
SEED = 0


def answers(target: nn.Module, tokenizer, prompts: list[str]) -> list[tuple[list[int], int]]:
    """Greedy answers: (prompt and response ids, length of the prompt)."""
    found = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        out = target.generate(torch.tensor([ids]), max_new_tokens=RESPONSE_TOKENS, do_sample=False)[0].tolist()
        found.append((out, len(ids)))
    return found


def config(target_config) -> Qwen3Config:
    """A drafter that shares the target's width, embedding and head."""
    return Qwen3Config(
        architectures=["DFlashDraftModel"],
        block_size=BLOCK,
        num_target_layers=target_config.num_hidden_layers,
        dflash_config={"target_layer_ids": TAPS, "mask_token_id": MASK_ID},
        num_hidden_layers=2,
        hidden_size=target_config.hidden_size,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=target_config.vocab_size,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        max_position_embeddings=target_config.max_position_embeddings,
        layer_types=["full_attention"] * 2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=target_config.eos_token_id,
        pad_token_id=target_config.pad_token_id,
    )


def mask_of(anchors: Tensor, num_context: int) -> Tensor:
    """Visibility, bool [1, 1, A * B, T + A * B]: context before the anchor, and the row's own block."""
    owner = torch.arange(len(anchors)).repeat_interleave(BLOCK)
    context = torch.arange(num_context)[None, :] < anchors[owner][:, None]
    return torch.cat([context, owner[:, None] == owner[None, :]], 1)[None, None]


def main(target_path: str, out: Path, prompts_path: str, steps: int) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    began = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(target_path)
    target = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32).eval()
    drafter = DFlashDraftModel(config(target.config))
    embedding = target.get_input_embeddings().weight.detach()
    with torch.no_grad():
        texts = answers(target, tokenizer, json.loads(Path(prompts_path).read_text()))
        states = []
        for ids, _ in texts:
            hidden = target(torch.tensor([ids]), output_hidden_states=True).hidden_states
            states.append(torch.cat([hidden[tap + 1] for tap in TAPS], -1))
    print(f"{len(texts)} answers in {time.monotonic() - began:.0f} s", flush=True)
    known = {token for ids, _ in texts for token in ids}
    others = torch.randperm(embedding.shape[0])[:NEGATIVES].tolist()
    choice = torch.tensor(sorted(known | set(others)))
    head = embedding[choice]
    place = torch.full((embedding.shape[0],), -1)
    place[choice] = torch.arange(len(choice))
    weights = torch.exp(-torch.arange(BLOCK - 1) / DECAY_ROWS)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    drafter.train()
    for step in range(steps):
        ids, start = texts[step % len(texts)]
        context = states[step % len(texts)]
        anchors = torch.arange(start, len(ids) - 1)
        block = torch.full((len(anchors), BLOCK), MASK_ID)
        tokens = torch.tensor(ids)
        block[:, 0] = tokens[anchors]
        label_at = anchors[:, None] + torch.arange(1, BLOCK)
        inside = label_at < len(ids)
        labels = place[tokens[label_at.clamp_max(len(ids) - 1)]]
        positions = torch.cat([torch.arange(len(ids)), (anchors[:, None] + torch.arange(BLOCK)).reshape(-1)])[None]
        hidden = drafter(
            position_ids=positions,
            attention_mask=mask_of(anchors, len(ids)),
            noise_embedding=embedding[block.reshape(-1)][None],
            target_hidden=context,
        )
        rows = hidden[0].reshape(len(anchors), BLOCK, -1)[:, 1:]
        logits = rows @ head.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        weight = (weights * inside).flatten()
        loss = (loss * weight).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            right = ((logits.argmax(-1) == labels) & inside)[:, 0].float().mean()
            print(
                f"step {step} loss {loss.item():.3f} first row {right:.3f} {time.monotonic() - began:.0f} s", flush=True
            )
    drafter.eval()
    drafter.save_pretrained(out)
    written = json.loads((out / "config.json").read_text())
    # Read by engines that know the plain spelling only.
    written |= {"rope_theta": 1_000_000.0, "dtype": "float32", "model_type": "qwen3"}
    (out / "config.json").write_text(json.dumps(written, indent=2))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else STEPS)
