"""Every size and budget of the recipe in one place: the full plan (ten minutes on one H200) and a smoke plan (seconds
on a CPU).
"""

from dataclasses import dataclass, replace

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


def full_plan() -> Plan:
    """The plan of the bundled models. Budgets add up to under nine minutes on one H200, data and evaluation
    included.
    """
    return Plan(
        name="full",
        target=TargetShape(kind="hybrid", hidden=256, mlp=448, layers=8, taps=(1, 3, 4, 5, 6)),
        drafter=DrafterShape(layers=3, mlp=384, taps=(1, 3, 4, 5, 6)),
        small=DrafterShape(layers=1, mlp=128, taps=(1, 4), heads=2, kv_heads=1),
        plain_target=TargetShape(kind="plain", hidden=256, mlp=512, layers=6, taps=(1, 2, 3, 4)),
        plain_drafter=DrafterShape(layers=2, mlp=384, taps=(1, 2, 3, 4)),
        dspark=DrafterShape(layers=1, mlp=256, taps=(1, 3, 4, 5, 6), block=7),
        eagle3=DrafterShape(layers=1, mlp=384, taps=(1, 3, 4), block=6, theta=1e4),
        target_budget=Budget(seconds=75),
        polish_budget=Budget(seconds=8),
        drafter_budget=Budget(seconds=50),
        small_budget=Budget(seconds=5),
        family_budget=Budget(seconds=12),
        plain_target_budget=Budget(seconds=45),
        plain_polish_budget=Budget(seconds=5),
        plain_drafter_budget=Budget(seconds=20),
        num_answers=32000,
        num_polish=16000,
        generate_batch=8000,
        num_plain_answers=16000,
    )


def desk_plan() -> Plan:
    """For a CPU, on top of a finished target and its answers: exact evaluation, and small drafters from small
    batches.
    """
    return replace(
        full_plan(),
        name="desk",
        small_budget=Budget(steps=1200),
        family_budget=Budget(steps=600),
        max_sequences=1500,
        sequences_per_step=8,
        anchors_per_sequence=8,
        drafter_rate=2e-3,
        workers=2,
    )


def rehearsal_plan() -> Plan:
    """The full plan's models and batch shapes with a few steps each: on a GPU it compiles every kernel and finds what
    a CPU cannot.
    """
    steps = Budget(steps=20)
    return replace(
        full_plan(),
        name="rehearsal",
        target_budget=steps,
        polish_budget=steps,
        drafter_budget=steps,
        small_budget=steps,
        family_budget=steps,
        plain_target_budget=steps,
        plain_polish_budget=steps,
        plain_drafter_budget=steps,
        num_answers=512,
        num_polish=512,
        generate_batch=512,
        num_plain_answers=512,
        max_files=1500,
        max_new_tokens=24,
        max_demo_tokens=24,
        num_heldout=64,
    )


def smoke_plan() -> Plan:
    """Every phase with toy sizes on a CPU in well under a minute: proves the plumbing, trains nothing worth keeping."""
    steps = Budget(steps=3)
    hybrid = TargetShape("hybrid", 32, 48, 8, (1, 3, 4, 5, 6), head_dim=16, linear_head_dim=16)
    small = DrafterShape(layers=1, mlp=16, taps=(1, 4), heads=2, kv_heads=1, head_dim=8)
    return replace(
        full_plan(),
        name="smoke",
        target=hybrid,
        drafter=DrafterShape(layers=2, mlp=32, taps=hybrid.taps, heads=2, kv_heads=1, head_dim=16),
        small=small,
        plain_target=TargetShape("plain", 32, 48, 6, (1, 2, 3, 4), head_dim=16),
        plain_drafter=DrafterShape(layers=1, mlp=32, taps=(1, 2, 3, 4), heads=2, kv_heads=1, head_dim=16),
        dspark=replace(small, block=5),
        eagle3=DrafterShape(layers=1, mlp=16, taps=(1, 3, 4), heads=2, kv_heads=1, head_dim=16, block=3, theta=1e4),
        target_budget=steps,
        polish_budget=steps,
        drafter_budget=steps,
        small_budget=steps,
        family_budget=steps,
        plain_target_budget=steps,
        plain_polish_budget=steps,
        plain_drafter_budget=steps,
        num_answers=12,
        num_polish=6,
        generate_batch=6,
        num_plain_answers=6,
        max_files=60,
        workers=1,
        row_tokens=128,
        rows_per_step=2,
        max_prompt_tokens=72,
        max_answer_tokens=60,
        max_new_tokens=8,
        max_demo_tokens=8,
        num_heldout=4,
        sequences_per_step=2,
        anchors_per_sequence=2,
        early_ratio=0.5,
        shard_bytes="200KB",
    )


PLANS = {"full": full_plan, "desk": desk_plan, "rehearsal": rehearsal_plan, "smoke": smoke_plan}
"""Plans by the name given on the command line."""
