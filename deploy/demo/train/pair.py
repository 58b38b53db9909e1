"""One pair: target, answers, features, drafters with an early state. Its evaluation is in `report`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deploy.demo.train.answer_store import load_answers, save_answers
from deploy.demo.train.answers import Answer, Prefill, generate, is_clean, prefill, share, take, width_of
from deploy.demo.train.chat import MASK
from deploy.demo.train.drafter_training import Snapshot, rounded, train_drafter
from deploy.demo.train.evaluation import Match, Round, walk_all
from deploy.demo.train.fit import Log
from deploy.demo.train.losses import dflash_loss
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.packing import dflash_config, save_checkpoint, save_tensors
from deploy.demo.train.rows import Dataset, Encoded
from deploy.demo.train.settings import SEED, Budget, DrafterShape, Plan, TargetShape
from deploy.demo.train.target_training import TargetTrainer, train_main, train_polish, validate
from deploy.demo.train.tokenization import save_tokenizer


@dataclass
class PairRun:
    """What the phases of one pair share; everything that a later phase needs is either here or on disk in
    ``folder``.
    """

    shape: TargetShape
    drafter: DrafterShape
    plan: Plan
    folder: Path
    cache: Path
    device: str
    log: Log
    dataset: Dataset | None = None
    record: dict[str, Any] = field(default_factory=dict)
    model: Any = None
    trainer: TargetTrainer | None = None
    answers: list[Answer] = field(default_factory=list)
    heldout: list[Answer] = field(default_factory=list)
    heldout_items: list[Encoded] = field(default_factory=list)
    features: Prefill | None = None
    heldout_features: Prefill | None = None

    @property
    def data(self) -> Dataset:
        """The dataset, which the data phase provides."""
        if self.dataset is None:
            raise RuntimeError("there is no dataset: the data phase has to run first")
        return self.dataset

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of inference."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @property
    def where(self) -> str:
        """Device and dtype of inference, which belong to every measured number."""
        return "GPU in bfloat16" if self.device == "cuda" else "CPU in float32"

    @property
    def embedding(self) -> torch.Tensor:
        """The target's table, which is also its head."""
        table: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        return table

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose outputs are kept: all taps of all drafters, and one further for the drafter trained on shifted
        layers.
        """
        plan = self.plan
        shapes = [self.drafter] + ([plan.small, plan.dspark, plan.eagle3] if self.shape.kind == "hybrid" else [])
        wanted = {i for s in shapes for i in s.taps}
        return tuple(sorted(wanted | ({i + 1 for i in plan.small.taps} if self.shape.kind == "hybrid" else set())))

    def warm_up(self, *, reference_delta_rule: bool) -> None:
        """Build the target's trainer and compile what it needs, while the data are still being made."""
        self.trainer = TargetTrainer(
            self.shape, self.plan, device=self.device, log=self.log, reference_delta_rule=reference_delta_rule
        )
        self.trainer.capture()

    def make_target(self, budget: Budget) -> None:
        """Train the target's first two stages, or load it when an earlier run has saved it."""
        if (self.folder / "target" / "config.json").exists():
            import transformers

            factory = transformers.AutoModelForCausalLM
            self.model = factory.from_pretrained(self.folder / "target", dtype=self.dtype).to(self.device).eval()
            self.trainer = None
            self.log("  target: loaded from an earlier run")
            return
        if self.trainer is None:
            self.warm_up(reference_delta_rule=False)
        assert self.trainer is not None
        main = train_main(self.trainer, self.data, self.plan, budget=budget, device=self.device)
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        self.record["target"] = {"parameters": parameters, "main": main}
        self.save_target()

    def polish_target(self, budget: Budget, *, reference_delta_rule: bool = False) -> None:
        """The third stage, unless an earlier run has done it; one that stopped before it goes on from the saved
        weights.
        """
        if "polish" in self.record.get("target", {}):
            return
        if self.trainer is None:
            self.warm_up(reference_delta_rule=reference_delta_rule)
            assert self.trainer is not None
            self.trainer.model.load_state_dict(self.model.state_dict())
        record, own = train_polish(
            self.trainer, self.model, self.data, self.plan, budget=budget, device=self.device, log=self.log
        )
        target = self.record["target"]
        target.update(polish=record, own_answers_before_polish=own, validation_before_polish=target["validation"])
        self.save_target()
        self.trainer = None

    def save_target(self) -> None:
        """Freeze the trained target for inference, validate and save it."""
        assert self.trainer is not None
        self.model = self.trainer.frozen()
        self.record["target"]["validation"] = validate(self.model, self.data.validation)
        self.log(f"  held-out answers: {self.record['target']['validation']}")
        self.model.save_pretrained(self.folder / "target", max_shard_size=self.plan.shard_bytes)
        save_tokenizer(self.data.tokenizer, self.folder / "target")

    def make_answers(self, count: int) -> None:
        """Answer training prompts, for the drafters; an earlier run's answers are taken up."""
        if self.cache.exists():
            self.answers = load_answers(self.cache)
            return
        self.answers = generate(
            self.model,
            [i.prompt for i in take(self.data.train, count)],
            max_new_tokens=self.plan.max_new_tokens,
            batch=self.plan.generate_batch,
            log=self.log,
        )
        save_answers(self.cache, self.answers)
        self.record["answers"] = {
            "prompts": len(self.answers),
            "response_tokens": sum(len(a.response) for a in self.answers),
            "ended": share([a.has_ended for a in self.answers]),
        }
        self.log(f"  {self.record['answers']}")

    def make_heldout(self) -> None:
        """Answer held-out prompts and prefill the answers, for every tau; the first call's shares go into the
        record.
        """
        self.heldout_items = self.data.heldout[: self.plan.num_heldout]
        self.heldout = generate(
            self.model,
            [i.prompt for i in self.heldout_items],
            max_new_tokens=self.plan.max_new_tokens,
            batch=self.plan.generate_batch,
        )
        self.heldout_features = prefill(self.model, self.heldout, layers=self.layers, width=width_of(self.heldout))
        texts = self.data.tokenizer.decode_batch([a.response for a in self.heldout])
        clean = [
            a.has_ended and is_clean(text, task=i.task)
            for a, text, i in zip(self.heldout, texts, self.heldout_items, strict=True)
        ]
        self.record.setdefault("heldout", {})[self.where] = {
            "prompts": len(self.heldout),
            "ended": share([a.has_ended for a in self.heldout]),
            "clean": share(clean),
            "median_tokens": float(np.median([len(a.response) for a in self.heldout])),
            "agreement": round(float(self.heldout_features.agreement.mean()), 5),
        }
        self.log(f"  {self.record['heldout'][self.where]}")

    def make_features(self) -> None:
        """Prefill the answers that ended and hold a draft to check."""
        usable = [a for a in self.answers if a.has_ended and a.has_drafts]
        if len(usable) < self.plan.sequences_per_step:  # an untrained target ends nothing
            usable = [a for a in self.answers if a.has_drafts]
        usable = usable[: self.plan.max_sequences]
        self.features = prefill(self.model, usable, layers=self.layers, width=width_of(usable))
        self.record.setdefault("features", {})[self.where] = {
            "sequences": len(usable),
            "layers": list(self.layers),
            "agreement_with_generation": round(float(self.features.agreement.mean()), 5),
        }

    def train_dflash(
        self,
        shape: DrafterShape,
        *,
        name: str,
        budget: Budget,
        taps: tuple[int, ...] | None = None,
        sees_anchor: bool = False,
        early_ratio: float | None = None,
    ) -> tuple[DFlash, Snapshot | None]:
        """Train one DFlash drafter; ``taps`` are the layers it is really fed, if other than its shape says."""
        if self.features is None:
            raise RuntimeError("features are missing: the features phase has to run first")
        features = self.features
        torch.manual_seed(SEED)
        network = DFlash(self.shape.hidden, shape, mask_id=MASK, sees_anchor=sees_anchor).to(self.device)
        embedding, fed = self.embedding, shape.taps if taps is None else taps
        fit_record, early = train_drafter(
            network,
            lambda batch: dflash_loss(
                network, features, batch=batch, embedding=embedding, taps=fed, decay=self.plan.loss_decay
            ),
            features,
            sampling=self.plan.sampling,
            budget=budget,
            name=name,
            log=self.log,
            early_ratio=early_ratio,
        )
        parameters = sum(p.numel() for p in network.parameters())
        self.record[name] = {"parameters": parameters, **fit_record.summary()}
        return network, early

    def make_pair(self, budget: Budget, *, with_early: bool) -> None:
        """Train the main drafter and save it, with the early state and its plain training checkpoint."""
        if (self.folder / "drafter-a" / "model.safetensors").exists():
            self.log("  drafter: saved by an earlier run")
            return
        ratio = self.plan.early_ratio if with_early else None
        network, early = self.train_dflash(self.drafter, name="drafter-a", budget=budget, early_ratio=ratio)
        config = dflash_config(self.shape, self.drafter)
        save_tensors(self.folder / "drafter-a", network.state_dict(), config)
        if early is not None:
            self.record["drafter-a"]["early_step"] = early.step
            save_tensors(self.folder / "drafter-b", early.weights, config)
            save_checkpoint(self.folder / "drafter-b" / "checkpoint.pt", early, self.embedding)

    def load_dflash(self, name: str, shape: DrafterShape) -> DFlash:
        """A saved drafter in the dtype of inference, as its file and shape say."""
        from safetensors.torch import load_file

        network = DFlash(self.shape.hidden, shape, mask_id=MASK)
        network.load_state_dict(load_file(str(self.folder / name / "model.safetensors")))
        return rounded(network, self.dtype).to(self.device)

    def heldout_rounds(self, match: Match) -> list[list[Round]]:
        """Serving walk over the held-out answers."""
        if self.heldout_features is None:
            raise RuntimeError("held-out features are missing: the heldout phase has to run first")
        return walk_all(match, self.heldout_features)
