"""Training of a target in three stages: everything, then short answers, then its own clean answers.

The third stage is what stops the loops of a small model's greedy text: it sees its own greedy answer where that ended
as valid Python without repetition, and the human answer where it did not.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from deploy.demo.train.answers import generate, is_clean, take
from deploy.demo.train.chat import END_OF_TEXT, IM_END
from deploy.demo.train.fit import Log, Step, fit
from deploy.demo.train.rows import Dataset, Rows, pack_answers
from deploy.demo.train.settings import SEED, VOCAB_SIZE, Budget, Plan, TargetShape
from deploy.demo.train.target import build_target, fast_training

WEIGHT_DECAY = 0.1
VALIDATION_BATCH = 64


class RowFeeder:
    """Batches of rows on the device, in a new random order every epoch."""

    def __init__(self, rows: Rows, device: str) -> None:
        self.ids = torch.from_numpy(rows.ids).to(device)
        self.weights = torch.from_numpy(rows.weights).to(device)
        self.num_rows = 0
        self._order = torch.empty(0, dtype=torch.long, device=device)

    def next(self, count: int) -> torch.Tensor:
        """Indices of the next ``count`` rows."""
        while len(self._order) < count:
            self._order = torch.cat((self._order, torch.randperm(len(self.ids), device=self.ids.device)))
        chosen, self._order = self._order[:count], self._order[count:]
        self.num_rows += count
        return chosen

    @property
    def epochs(self) -> float:
        """How often each row was seen on average."""
        return self.num_rows / max(1, len(self.ids))


class TargetTrainer:
    """One target in training: float32 weights, buffers, one captured step for all stages."""

    def __init__(
        self, shape: TargetShape, plan: Plan, *, device: str, log: Log, reference_delta_rule: bool = False
    ) -> None:
        self._shape, self._plan, self._device, self._log = shape, plan, device, log
        self._on_gpu = device == "cuda"
        self._reference_delta_rule = reference_delta_rule
        self.model: Any = build_target(shape).to(device).train()
        self._ids = torch.zeros(plan.rows_per_step, plan.row_tokens, dtype=torch.long, device=device)
        self._weights = torch.ones(plan.rows_per_step, plan.row_tokens, device=device)
        self._step: Step | None = None
        named = list(self.model.named_parameters())
        decayed = [p for n, p in named if p.ndim >= 2 and "embed" not in n and "conv1d" not in n]
        kept = {id(p) for p in decayed}
        self._groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": WEIGHT_DECAY},
            {"params": [p for _, p in named if id(p) not in kept], "weight_decay": 0.0},
        ]

    def _loss(self) -> torch.Tensor:
        model, ids = self.model, self._ids
        with torch.autocast(self._device, torch.bfloat16, enabled=self._on_gpu, cache_enabled=False):
            words = F.embedding(ids, model.model.embed_tokens.weight)
            words = words.to(torch.bfloat16) if self._on_gpu else words
            hidden = model.model(inputs_embeds=words, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[:, :-1]).float()
        entropy = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = self._weights[:, 1:].flatten()
        return (entropy * weights).sum() / weights.sum()

    def capture(self) -> None:
        """Compile the kernels and capture the step on meaningless rows; training starts at full speed afterwards."""
        self._ids.random_(VOCAB_SIZE)
        with self._fast():
            parameters = [p for group in self._groups for p in group["params"]]
            self._step = Step(self._loss, parameters, graph=self._on_gpu)

    def _fast(self) -> Any:
        return fast_training(
            self._shape.kind, fla_kernels=self._on_gpu, reference_delta_rule=self._reference_delta_rule
        )

    def train(self, feed: Callable[[float], RowFeeder], *, rate: float, budget: Budget, name: str) -> dict[str, Any]:
        """One fit; ``feed`` says which rows to use at a progress in 0..1."""
        if self._step is None:
            self.capture()
        assert self._step is not None

        def refill(progress: float) -> None:
            feeder = feed(progress)
            rows = feeder.next(self._plan.rows_per_step)
            self._ids.copy_(feeder.ids[rows])
            self._weights.copy_(feeder.weights[rows])

        groups = [dict(group) for group in self._groups]
        with self._fast():
            record = fit(self._step, refill, groups, rate=rate, budget=budget, name=name, log=self._log)
        tokens = record.steps * self._plan.rows_per_step * self._plan.row_tokens
        return {**record.summary(), "tokens": tokens, "rate": rate}

    def frozen(self) -> Any:
        """A copy for inference: bfloat16 on a GPU, float32 on a CPU."""
        return copy.deepcopy(self.model).to(torch.bfloat16 if self._on_gpu else torch.float32).eval()


def own_answers(model: Any, data: Dataset, plan: Plan, log: Log) -> tuple[Rows, dict[str, Any]]:
    """Rows of the third stage, and how many of the target's answers ended and were clean."""
    items = take(data.train, plan.num_polish)
    found = generate(
        model, [i.prompt for i in items], max_new_tokens=plan.max_new_tokens, batch=plan.generate_batch, log=log
    )
    texts = data.tokenizer.decode_batch([a.response for a in found])
    pairs, ended, clean = [], 0, 0
    for item, answer, text in zip(items, found, texts, strict=True):
        ended += answer.has_ended
        is_good = answer.has_ended and is_clean(text, task=item.task)
        clean += is_good
        own = [t for t in answer.response if t not in {IM_END, END_OF_TEXT}] + item.answer[-3:]
        pairs.append((item.prompt, own if is_good else item.answer))
    record = {"prompts": len(items), "ended": round(ended / len(items), 4), "clean": round(clean / len(items), 4)}
    return pack_answers(pairs, plan.row_tokens), record


def train_main(trainer: TargetTrainer, data: Dataset, plan: Plan, *, budget: Budget, device: str) -> dict[str, Any]:
    """The first two stages; returns the record for the card."""
    torch.manual_seed(SEED)
    broad, short = RowFeeder(data.broad, device), RowFeeder(data.short, device)
    record = trainer.train(
        lambda progress: broad if progress < plan.broad_ratio else short,
        rate=plan.target_rate,
        budget=budget,
        name="target",
    )
    record["epochs"] = {"broad": round(broad.epochs, 2), "short": round(short.epochs, 2)}
    return record


def train_polish(
    trainer: TargetTrainer, model: Any, data: Dataset, plan: Plan, *, budget: Budget, device: str, log: Log
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The third stage; ``model`` is the frozen copy that answers. Returns the records of the training and of the
    answers.
    """
    rows, own = own_answers(model, data, plan, log)
    log(f"  own answers: {own}")
    feeder = RowFeeder(rows, device)
    record = trainer.train(lambda _: feeder, rate=plan.polish_rate, budget=budget, name="polish")
    record["epochs"] = round(feeder.epochs, 2)
    return record, own


@torch.no_grad()
def validate(model: Any, rows: Rows) -> dict[str, float]:
    """Negative log-likelihood and accuracy on the answers of held-out pairs."""
    device = next(model.parameters()).device
    loss = hits = count = 0.0
    for start in range(0, len(rows.ids), VALIDATION_BATCH):
        ids = torch.from_numpy(rows.ids[start : start + VALIDATION_BATCH]).to(device).long()
        wanted = torch.from_numpy(rows.weights[start : start + VALIDATION_BATCH]).to(device)[:, 1:] > 0
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        entropy = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(wanted)
        loss += float(entropy[wanted].sum())
        hits += float((logits.argmax(-1) == ids[:, 1:])[wanted].sum())
        count += float(wanted.sum())
    return {"nll": round(loss / count, 4), "accuracy": round(hits / count, 4), "tokens": int(count)}
