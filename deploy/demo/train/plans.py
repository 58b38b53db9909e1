"""Every size and budget of the recipe in one place: the full plan (ten minutes on one H200), a smoke plan (seconds on
a CPU), and two between them.
"""

from dataclasses import fields, replace

from deploy.demo.train.settings import Budget, DrafterShape, Plan, TargetShape


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


def _every_budget(budget: Budget) -> dict[str, Budget]:
    """The same budget for every phase that trains."""
    return {field.name: budget for field in fields(Plan) if field.name.endswith("_budget")}


def rehearsal_plan() -> Plan:
    """The full plan's models and batch shapes with a few steps each: on a GPU it compiles every kernel and finds what
    a CPU cannot.
    """
    steps = Budget(steps=20)
    return replace(
        full_plan(),
        name="rehearsal",
        **_every_budget(steps),
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
        **_every_budget(steps),
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
