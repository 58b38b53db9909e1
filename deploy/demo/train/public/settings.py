"""What can be set for a drafter of a public target."""

from dataclasses import dataclass

from deploy.demo.train.settings import Budget, DrafterShape, Sampling


@dataclass(frozen=True)
class PublicPlan:
    """One training.

    Attributes:
        drafter: Sizes; ``taps`` may be empty: then they are z-lab's for as many draft layers (`default_taps`).
        sampling: Batches and rate.
        budget: Length of the training. Only one in steps can be continued after an interruption.
        max_new_tokens: Longest answer.
        generate_batch: Prompts answered together. One is exact and no slower on a CPU; more are padded.
        negatives: Tokens beside those of the answers that the training softmax covers; None for the whole vocabulary,
            whose head would be most of the work on a CPU.
        mask_id: Token whose embedding stands for a place to fill; None to choose one that no answer contains.
    """

    drafter: DrafterShape
    sampling: Sampling
    budget: Budget
    max_new_tokens: int = 96
    generate_batch: int = 1
    negatives: int | None = None
    mask_id: int | None = None


def default_taps(num_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Layers that a drafter of ``draft_layers`` layers reads when nothing is said: as in z-lab's
    ``build_target_layer_ids``, without repetitions on shallow targets.
    """
    if draft_layers == 1:
        return (num_layers // 2,)
    spread = {round(1 + i * (num_layers - 4) / (draft_layers - 1)) for i in range(draft_layers)}
    return tuple(sorted(min(max(i, 0), num_layers - 1) for i in spread))
