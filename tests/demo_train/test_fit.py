"""The training loop: where it ends, and that an interruption loses nothing that was stored."""

import pytest
import torch
from deploy.demo.train.drafter_training import save_progress
from deploy.demo.train.fit import Step, fit
from deploy.demo.train.settings import Budget
from torch import nn

STEPS = 8


def curve(network, **hooks):
    """Train a linear map to halve its input for eight steps, each with a batch of its own; returns the record."""
    batch = torch.zeros(4, 3)
    seen = []

    def refill(progress):
        seen.append(progress)
        batch.copy_(torch.arange(12.0).view(4, 3) * (1 + progress))

    step = Step(lambda: (network(batch) - batch / 2).square().mean(), list(network.parameters()), graph=False)
    groups = [{"params": list(network.parameters())}]
    record = fit(step, refill, groups, rate=0.05, budget=Budget(steps=STEPS), name="t", log=lambda _: None, **hooks)
    return record, seen


def network():
    torch.manual_seed(5)
    return nn.Linear(3, 3)


@pytest.mark.parametrize("cut", [1, 5])
def test_a_training_that_was_taken_up_ends_where_an_undisturbed_one_does(tmp_path, cut):
    path = tmp_path / "progress.pt"
    whole = network()

    def keep(_progress, step, optimizer):
        if step == cut:
            save_progress(path, whole, optimizer, step)

    curve(whole, on_progress=keep)
    second = nn.Linear(3, 3)

    def resume(optimizer):
        state = torch.load(path, weights_only=True)
        second.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    record, seen = curve(second, resume=resume)
    assert (record.taken_up_at, record.steps, len(seen)) == (cut, STEPS, STEPS - cut)
    assert torch.equal(second.weight, whole.weight)


def test_a_budget_in_seconds_ends_by_the_clock():
    ticks = iter(range(100))
    seen = []
    model = network()
    step = Step(lambda: model(torch.ones(1, 3)).square().sum(), list(model.parameters()), graph=False)
    record = fit(
        step,
        seen.append,
        [{"params": list(model.parameters())}],
        rate=0.01,
        budget=Budget(seconds=5),
        name="t",
        log=lambda _: None,
        clock=lambda: float(next(ticks)),
    )
    assert record.steps == 4  # the clock is read once at the start and once a step
    assert seen == [0.2, 0.4, 0.6, 0.8]
