"""The run: answers, features, training, tau, card. Each step that takes minutes is taken up where it stopped."""

import hashlib
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from deploy.demo.train.answer_store import load_answers, save_answers
from deploy.demo.train.answers import Answer, Prefill, generate, prefill, share, width_of
from deploy.demo.train.drafter_training import rounded, train_drafter
from deploy.demo.train.environment import environment
from deploy.demo.train.evaluation import dflash_matches, summarise, walk_all
from deploy.demo.train.fit import FitRecord, Log
from deploy.demo.train.losses import Head, dflash_loss
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.packing import dflash_config, save_tensors, write_json
from deploy.demo.train.public.card import write_card
from deploy.demo.train.public.prompts import Prompts, encode
from deploy.demo.train.public.settings import PublicPlan, default_taps
from deploy.demo.train.public.target import PublicTarget, choose_mask
from deploy.demo.train.settings import SEED, DrafterShape, TargetShape

SAVE_EVERY_ANSWERS = 8
"""Answers between two writes of the store: a minute of a small model on a CPU."""
FEATURE_ROWS = 8
"""Answers in one prefill: their logits over a large vocabulary are what fills the memory."""
WALK_ROWS = 4
"""Answers in one pass of the evaluation, for the same reason."""


class PublicRun:
    """One drafter for one target.

    Args:
        target: The target, on its device.
        plan: Sizes and lengths.
        out: Where ``config.json``, ``model.safetensors``, ``run.json`` and the card go; ``work/`` in it keeps what an
            interrupted run goes on with. ``model.safetensors`` is written last.
        log: Takes one line.
    """

    def __init__(self, target: PublicTarget, plan: PublicPlan, out: Path, *, log: Log) -> None:
        self._target, self._out, self._log = target, out, log
        self._work = out / "work"
        self._device = str(next(target.model.parameters()).device.type)
        taps = plan.drafter.taps or default_taps(target.num_layers, plan.drafter.layers)
        beyond = [i for i in taps if not 0 <= i < target.num_layers]
        if beyond:
            raise ValueError(
                f"taps={list(taps)}: the target has {target.num_layers} layers (0..{target.num_layers - 1})"
            )
        self._plan = replace(plan, drafter=replace(plan.drafter, taps=taps))

    def run(self, prompts: Prompts, *, prompts_file: str, arguments: str) -> dict[str, Any]:
        """Do everything that is not done yet; returns the record that the card is written from.

        Raises:
            ValueError: ``out`` holds a run with other prompts, another target or other settings.
        """
        began = time.monotonic()
        torch.manual_seed(SEED)
        self._work.mkdir(parents=True, exist_ok=True)
        train_ids, heldout_ids = (
            [encode(self._target.tokenizer, messages) for messages in part] for part in (prompts.train, prompts.heldout)
        )
        self._claim(prompts.sha256)
        answers = self._answers([*train_ids, *heldout_ids])
        # Nothing is drafted in an answer of two tokens: it can neither be trained on nor have a round worth its name.
        train = [a for a in answers[: len(train_ids)] if a.has_drafts]
        if not train:
            raise ValueError("no answer to a training prompt is 3 tokens or longer: nothing to learn a draft from")
        seen = self._prefill(train)
        self._log(f"features of {len(train)} answers, agreement {float(seen.agreement.mean()):.4f}")
        mask = self._plan.mask_id
        mask_id = choose_mask(self._target.tokenizer, (t for a in answers for t in a.ids)) if mask is None else mask
        network, scored, fit = self._train(seen, mask_id)
        self._save(network, mask_id)
        parts = {"trained on": seen}
        heldout = [a for a in answers[len(train_ids) :] if a.has_drafts]
        if heldout:
            parts["held out"] = self._prefill(heldout)
        shape = self._plan.drafter
        record: dict[str, Any] = {
            "target": {
                "name": self._target.name,
                "config_sha256": self._target.config_sha256,
                "layers": self._target.num_layers,
                "hidden": self._target.hidden,
                "vocab": int(self._target.embedding.shape[0]),
            },
            "prompts": {
                "file": prompts_file,
                "sha256": prompts.sha256,
                "trained_on": len(prompts.train),
                "heldout": len(prompts.heldout),
            },
            "answers": {
                "sequences": len(train),
                "response_tokens": sum(len(a.response) for a in train),
                "ended": share([a.has_ended for a in train]),
                "max_new_tokens": self._plan.max_new_tokens,
                "agreement": round(float(seen.agreement.mean()), 5),
            },
            "drafter": {
                "parameters": sum(p.numel() for p in network.parameters()),
                **asdict(shape),
                "mask_id": mask_id,
                "scored_tokens": scored,
                **fit.summary(),
            },
            "tau": self._tau(network, parts),
            "where": "GPU in bfloat16" if self._device == "cuda" else "CPU in float32",
            "environment": environment(self._device),
            "seed": SEED,
            "arguments": arguments,
            "seconds": round(time.monotonic() - began, 1),
        }
        self._finish(record)
        return record

    def _claim(self, prompts_sha256: str) -> None:
        """Refuse to mix two runs in one folder."""
        settings = json.dumps([prompts_sha256, self._target.config_sha256, self._device, asdict(self._plan)])
        digest = hashlib.sha256(settings.encode()).hexdigest()
        path = self._work / "settings.sha256"
        if path.exists() and path.read_text() != digest:
            raise ValueError(f"{self._out} holds a run with other prompts, target or settings: give another --out")
        path.write_text(digest)

    def _answers(self, prompts: list[list[int]]) -> list[Answer]:
        """Greedy answers, a few at a time, kept after each few."""
        path = self._work / "answers.npz"
        answers = load_answers(path) if path.exists() else []
        if answers:
            self._log(f"{len(answers)} of {len(prompts)} answers are there from an earlier run")
        step = max(SAVE_EVERY_ANSWERS, self._plan.generate_batch)
        while len(answers) < len(prompts):
            answers += generate(
                self._target.model,
                prompts[len(answers) : len(answers) + step],
                max_new_tokens=self._plan.max_new_tokens,
                batch=self._plan.generate_batch,
                stop_ids=self._target.stop_ids,
                pad_id=self._target.pad_id,
            )
            partial = path.with_name("answers.partial.npz")
            save_answers(partial, answers)
            partial.replace(path)
            self._log(f"answered {len(answers)} of {len(prompts)} prompts")
        return answers

    def _prefill(self, answers: list[Answer]) -> Prefill:
        layers = tuple(sorted(set(self._plan.drafter.taps)))
        return prefill(self._target.model, answers, layers=layers, width=width_of(answers), batch=FEATURE_ROWS)

    def _head(self, data: Prefill) -> Head:
        """The rows of the head to train against: the tokens of the answers and some others, or all."""
        head, negatives = self._target.head, self._plan.negatives
        if negatives is None or negatives >= len(head):
            return Head(head)
        scored = {*data.ids.flatten().tolist(), *torch.randperm(len(head))[:negatives].tolist()}
        chosen = torch.tensor(sorted(scored), device=head.device)
        places = torch.zeros(len(head), dtype=torch.long, device=head.device)
        places[chosen] = torch.arange(len(chosen), device=head.device)
        return Head(head[chosen], places)

    def _train(self, data: Prefill, mask_id: int) -> tuple[DFlash, int, FitRecord]:
        """A trained network, how many tokens its softmax covered, and the record of the training."""
        plan, embedding, taps = self._plan, self._target.embedding, self._plan.drafter.taps
        network = DFlash(self._target.hidden, plan.drafter, mask_id=mask_id).to(self._device)
        head = self._head(data)
        fit = train_drafter(
            network,
            lambda batch: dflash_loss(
                network, data, batch=batch, embedding=embedding, taps=taps, decay=plan.sampling.decay, head=head
            ),
            data,
            sampling=plan.sampling,
            budget=plan.budget,
            name="drafter",
            log=self._log,
            progress_file=self._work / "progress.pt",
        )[0]
        return network, len(head.rows), fit

    def _tau(self, network: DFlash, parts: dict[str, Prefill]) -> dict[str, Any]:
        target = self._target
        inference = rounded(network, target.embedding.dtype)
        match = dflash_matches(inference, target.embedding, head=target.head)
        out = {}
        for name, data in parts.items():
            out[name] = summarise(walk_all(match, data, sequences=WALK_ROWS), network.shape.block)
            self._log(f"prompts {name}: tau {out[name]['tau_pooled']} {out[name]['interval_95']}")
        return out

    def _save(self, network: DFlash, mask_id: int) -> None:
        config = config_of(self._target, self._plan.drafter, mask_id=mask_id)
        save_tensors(self._work / "drafter", network.state_dict(), config, dtype=self._target.embedding.dtype)

    def _finish(self, record: dict[str, Any]) -> None:
        """Put the results in place, the weights last: where they are, a run is whole."""
        write_json(self._out / "run.json", record)
        write_card(self._out / "README.md", record)
        for name in ("config.json", "model.safetensors"):
            (self._work / "drafter" / name).replace(self._out / name)
        (self._work / "progress.pt").unlink(missing_ok=True)


def config_of(target: PublicTarget, shape: DrafterShape, *, mask_id: int) -> dict[str, Any]:
    """``config.json`` in z-lab's format with the target's ids; theta in both spellings, as engines read either."""
    facts = TargetShape("public", target.hidden, 0, target.num_layers, shape.taps)
    config = dflash_config(facts, shape)
    del config["rope_scaling"]
    return config | {
        "dflash_config": {"target_layer_ids": list(shape.taps), "mask_token_id": mask_id},
        "vocab_size": int(target.embedding.shape[0]),
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "max_position_embeddings": int(target.model.config.max_position_embeddings),
        "eos_token_id": target.stop_ids[0],
        "pad_token_id": target.pad_id,
        "dtype": str(target.embedding.dtype).removeprefix("torch."),
    }
