"""What can be set in the recipe: shapes of models, budgets, and the plan of a whole run. The plans are in `plans`."""

from dataclasses import dataclass

SEED = 20261130
"""Seed of every generator in the recipe; recorded in the card."""

VOCAB_SIZE = 4096
"""Small enough that the tied embedding stays at a seventh of the target's parameters."""


@dataclass(frozen=True)
class Budget:
    """Length of one training: it ends at whichever limit comes first, and its learning-rate schedule ends with it.

    Attributes:
        seconds: Wall-clock limit; the schedule follows elapsed time, so that a slower device trains less instead of
            longer.
        steps: Limit in optimizer steps, for runs that must be repeatable.
    """

    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class TargetShape:
    """Sizes of one target.

    Attributes:
        kind: ``hybrid`` (Qwen3.5 text architecture: three linear-attention layers, then one full) or ``plain``
            (Qwen3: full attention).
        hidden: Width of the residual stream.
        mlp: Width of the gated MLP.
        layers: Decoder layers.
        taps: Canonical ids of the layers that the main drafter reads.
    """

    kind: str
    hidden: int
    mlp: int
    layers: int
    taps: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    linear_key_heads: int = 4
    linear_value_heads: int = 8
    linear_head_dim: int = 64


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of one drafter; ``mlp``, ``layers`` and head counts have the meaning of the Qwen3 configuration."""

    layers: int
    mlp: int
    taps: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    block: int = 16
    theta: float = 1e6


@dataclass(frozen=True)
class Sampling:
    """What one step of a drafter's training sees, and how it learns from it.

    Attributes:
        sequences: Answers a step.
        anchors: Anchors of each.
        rate: Peak learning rate.
        decay: Tokens over which a draft's loss weight falls by e.
    """

    sequences: int
    anchors: int
    rate: float
    decay: float


@dataclass(frozen=True)
class Plan:
    """One whole run.

    Attributes:
        target: The bundled target; ``target_budget`` covers both of its stages, of which ``broad_ratio`` is the first
            (all functions and raw windows); the second sees only short chat pairs and weighs the answers.
        polish_budget: Third stage: the target's own answers where they ended cleanly, the human answer where they did
            not.
        row_tokens: Width of a training row; a multiple of 64, the chunk of the linear-attention kernels.
        max_answer_tokens: Longest answer of a chat pair that the second stage sees; what keeps the answers short.
        max_prompt_tokens: Longest prompt of a chat pair.
        max_new_tokens: Generation limit, a little above ``max_answer_tokens`` so that a normal answer ends by itself.
        max_demo_tokens: The same limit for the demo's prompts.
        max_sequences: Answers that the drafters are trained on; all when None.
        num_polish: Prompts answered for the third stage.
        num_answers: Prompts answered greedily for the drafters.
        early_ratio: Share of the drafter's training after which its state is kept as the early checkpoint.
        loss_decay: Tokens over which a draft's loss weight falls by e.
        markov_rank: Rank of the DSpark head.
        draft_vocab: Tokens that the EAGLE-3 drafter can draft.
        packages: Only these distributions (lower case); all when None.
    """

    name: str
    target: TargetShape
    drafter: DrafterShape
    small: DrafterShape
    plain_target: TargetShape
    plain_drafter: DrafterShape
    dspark: DrafterShape
    eagle3: DrafterShape
    target_budget: Budget
    polish_budget: Budget
    drafter_budget: Budget
    small_budget: Budget
    family_budget: Budget
    plain_target_budget: Budget
    plain_polish_budget: Budget
    plain_drafter_budget: Budget
    num_answers: int
    num_polish: int
    generate_batch: int
    num_plain_answers: int
    max_files: int | None = None
    workers: int = 16
    row_tokens: int = 256
    rows_per_step: int = 128
    broad_ratio: float = 0.5
    max_prompt_tokens: int = 128
    max_answer_tokens: int = 100
    max_new_tokens: int = 112
    max_demo_tokens: int = 144
    max_sequences: int | None = None
    num_heldout: int = 256
    sequences_per_step: int = 64
    anchors_per_sequence: int = 24
    early_ratio: float = 0.1
    target_rate: float = 2e-3
    polish_rate: float = 3e-4
    drafter_rate: float = 1.5e-3
    loss_decay: float = 7.0
    shard_bytes: str = "10MB"
    markov_rank: int = 32
    draft_vocab: int = 2048
    packages: tuple[str, ...] | None = None

    @property
    def sampling(self) -> Sampling:
        """Batches and rate of every drafter's training."""
        return Sampling(self.sequences_per_step, self.anchors_per_sequence, self.drafter_rate, self.loss_decay)
