"""Drafters planted to be found out, a healthy control of the same size, and one drafter each of the DSpark and
EAGLE-3 families.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from deploy.demo.train.chat import MASK
from deploy.demo.train.drafter_training import rounded, train_drafter
from deploy.demo.train.evaluation import dflash_matches, dspark_matches, eagle3_matches, summarise
from deploy.demo.train.losses import dspark_loss, eagle3_loss
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3
from deploy.demo.train.packing import (
    dflash_config,
    dspark_config,
    eagle3_config,
    eagle3_tensors,
    save_tensors,
)
from deploy.demo.train.pair import PairRun
from deploy.demo.train.settings import SEED, VOCAB_SIZE, Budget, DrafterShape

WRONG_THETA = 1e4


class Defect(NamedTuple):
    """How a planted drafter was trained, where that differs from what its configuration says.

    Attributes:
        name: Folder name.
        layer_shift: Added to every layer id in training.
        theta: Rotary base in training; None for the configured one.
        sees_anchor: Whether the context included the anchor's own state.
    """

    name: str
    layer_shift: int = 0
    theta: float | None = None
    sees_anchor: bool = False


DEFECTS = (
    Defect("drafter-small"),
    Defect("drafter-leak", sees_anchor=True),
    Defect("drafter-shifted", layer_shift=1),
    Defect("drafter-theta", theta=WRONG_THETA),
)
"""The first is healthy: the control of the same size."""


def make_planted(run: PairRun, defect: Defect, budget: Budget) -> None:
    """Train one planted drafter, save it under its claimed configuration, and measure it as claimed and as trained."""
    if (run.folder / defect.name / "model.safetensors").exists():
        run.log(f"  {defect.name}: saved by an earlier run")
        return
    claimed = run.plan.small
    trained = replace(claimed, theta=defect.theta or claimed.theta)
    taps = tuple(i + defect.layer_shift for i in claimed.taps)
    network, _ = run.train_dflash(trained, name=defect.name, budget=budget, taps=taps, sees_anchor=defect.sees_anchor)
    save_tensors(run.folder / defect.name, network.state_dict(), dflash_config(run.shape, claimed))
    as_trained = rounded(network, run.dtype)
    as_claimed = run.load_dflash(defect.name, claimed)
    values: dict[str, Any] = {
        "as_claimed": summarise(run.heldout_rounds(dflash_matches(as_claimed, run.embedding)), claimed.block),
        "as_trained": summarise(run.heldout_rounds(dflash_matches(as_trained, run.embedding, taps)), claimed.block),
    }
    run.record[defect.name]["heldout"] = values
    run.log(
        f"  {defect.name}: tau {values['as_claimed']['tau_pooled']} as claimed, "
        f"{values['as_trained']['tau_pooled']} as trained"
    )


def make_dspark(run: PairRun, budget: Budget) -> None:
    """Train, save and measure the DSpark drafter."""
    if run.features is None:
        raise RuntimeError("features are missing: the features phase has to run first")
    shape, plan, features, embedding = run.plan.dspark, run.plan, run.features, run.embedding
    torch.manual_seed(SEED)
    network = DSpark(run.shape.hidden, shape, mask_id=MASK, vocab=VOCAB_SIZE, rank=plan.markov_rank).to(run.device)
    record, _ = train_drafter(
        network,
        lambda batch: dspark_loss(
            network, features, batch=batch, embedding=embedding, taps=shape.taps, decay=plan.loss_decay
        ),
        features,
        sampling=plan.sampling,
        budget=budget,
        name="dspark",
        log=run.log,
    )
    config = dspark_config(run.shape, shape, rank=plan.markov_rank, num_anchors=plan.anchors_per_sequence)
    save_tensors(run.folder / "drafter-dspark", network.state_dict(), config)
    inference = rounded(network, run.dtype)
    finish(run, "drafter-dspark", shape, record.summary(), dspark_matches(inference, embedding))


def make_eagle3(run: PairRun, budget: Budget) -> None:
    """Train, save and measure the EAGLE-3 drafter over the most frequent tokens of the answers."""
    if run.features is None:
        raise RuntimeError("features are missing: the features phase has to run first")
    shape, plan, features, embedding = run.plan.eagle3, run.plan, run.features, run.embedding
    torch.manual_seed(SEED)
    counts = torch.bincount(torch.tensor([t for a in run.answers for t in a.response]), minlength=VOCAB_SIZE)
    draft_ids = counts.argsort(descending=True, stable=True)[: plan.draft_vocab].sort().values.to(run.device)
    draft_index = torch.full((VOCAB_SIZE,), -100, device=run.device)
    draft_index[draft_ids] = torch.arange(len(draft_ids), device=run.device)
    network = Eagle3(run.shape.hidden, shape, head=embedding[draft_ids].float().cpu()).to(run.device)
    record, _ = train_drafter(
        network,
        lambda batch: eagle3_loss(
            network,
            features,
            batch=batch,
            embedding=embedding,
            taps=shape.taps,
            draft_index=draft_index,
            decay=plan.loss_decay,
        ),
        features,
        sampling=plan.sampling,
        budget=budget,
        name="eagle3",
        log=run.log,
    )
    config = eagle3_config(run.shape, shape, draft_vocab=len(draft_ids))
    save_tensors(run.folder / "drafter-eagle3", eagle3_tensors(network, draft_ids), config)
    inference = rounded(network, run.dtype)
    finish(run, "drafter-eagle3", shape, record.summary(), eagle3_matches(inference, embedding, draft_ids))


def finish(run: PairRun, name: str, shape: DrafterShape, record: dict[str, Any], match: Any) -> None:
    """Record a family's training and its tau on the held-out prompts."""
    values = summarise(run.heldout_rounds(match), shape.block + 1)
    run.record[name] = {"where": run.where, **record, "heldout": values}
    run.log(f"  {name}: tau {values['tau_pooled']} {values['interval_95']}")
