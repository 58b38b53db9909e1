"""States of the engine against transformers' own outputs, layer by layer."""

from typing import Any

import numpy as np
import pytest
import torch

from kit.engine import Reference, Start, job, random_ids, results

LENGTH = 75
"""Not a multiple of 64, the block that gated delta layers work on."""

KINDS = ["hybrid", "vision", "qwen3", "llama"]


def by_transformers(model: Any, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Hidden states tuple, the last layer's raw output by hook, and logits."""
    caught = []
    handle = model.model.layers[-1].register_forward_hook(lambda module, args, output: caught.append(output))
    with torch.no_grad():
        output = model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True)
    handle.remove()
    last = caught[0][0] if isinstance(caught[0], tuple) else caught[0]
    return [h[0].numpy() for h in output.hidden_states], last[0].numpy(), output.logits[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_but_the_last_equals_output_hidden_states_bit_for_bit(
    start: Start, reference: Reference, kind: str
) -> None:
    ids = random_ids(LENGTH)
    states, _, _ = by_transformers(reference(kind), ids)
    layers = tuple(range(-1, len(states) - 2))
    (found,) = results(start(kind), [job(ids, layers)])
    for layer, ours in zip(layers, found.states, strict=True):
        np.testing.assert_array_equal(ours, states[layer + 1], err_msg=f"layer {layer}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_is_taken_before_the_final_norm_and_final_norm_after_it(
    start: Start, reference: Reference, kind: str
) -> None:
    ids = random_ids(LENGTH)
    states, raw_last, _ = by_transformers(reference(kind), ids)
    last = len(states) - 2
    (found,) = results(start(kind), [job(ids, (last,), final_norm=True)])
    np.testing.assert_array_equal(found.states[0], raw_last)
    np.testing.assert_array_equal(found.states[1], states[-1])
    assert not np.allclose(raw_last, states[-1], rtol=0.05), "the two planes must differ, else this test proves nothing"


def test_planes_come_back_in_the_order_asked_for(start: Start) -> None:
    ids = random_ids(20)
    (forward,) = results(start("hybrid"), [job(ids, (1, 4, 6))])
    (shuffled,) = results(start("hybrid"), [job(ids, (6, 1, 4))])
    np.testing.assert_array_equal(shuffled.states, forward.states[[2, 0, 1]])


def test_layers_above_the_deepest_one_asked_never_run(start: Start) -> None:
    engine = start("hybrid")
    ran: list[int] = []
    handles = [
        step.layer.register_forward_hook(lambda module, args, output, index=index: ran.append(index))
        for index, step in enumerate(engine.parts.anatomy.layers)
    ]
    try:
        results(engine, [job(random_ids(9), (2, 0))])
        results(engine, [job(random_ids(9), (-1,))])
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0, 1, 2]


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (3, 9), (19, 20)])
def test_positions_choose_rows_of_the_same_states(start: Start, first: int, stop: int) -> None:
    ids = random_ids(20)
    (whole,) = results(start("llama"), [job(ids, (0, 3), final_norm=True)])
    (part,) = results(start("llama"), [job(ids, (0, 3), final_norm=True, start=first, stop=stop)])
    # float32: a shorter prompt changes the order of sums in matrix products
    np.testing.assert_allclose(part.states, whole.states[:, first:stop], rtol=2e-5, atol=2e-5)


def test_bfloat16_answers_are_the_float32_states_rounded_once(start: Start) -> None:
    ids = random_ids(30)
    (exact,) = results(start("hybrid"), [job(ids, (2, 7))])
    (rounded,) = results(start("hybrid"), [job(ids, (2, 7), dtype="bfloat16")])
    assert rounded.states.dtype.name == "bfloat16"
    np.testing.assert_array_equal(
        rounded.states.astype(np.float32), exact.states.astype(rounded.states.dtype).astype(np.float32)
    )


def test_the_embedding_output_is_layer_minus_one(start: Start, reference: Reference) -> None:
    ids = random_ids(12)
    (found,) = results(start("qwen3"), [job(ids, (-1,))])
    expected = reference("qwen3").get_input_embeddings().weight[torch.from_numpy(ids.astype(np.int64))]
    np.testing.assert_array_equal(found.states[0], expected.detach().numpy())


@pytest.mark.parametrize("kind", ["hybrid", "llama"])
@pytest.mark.parametrize("chunk", [1, 7, 40, 64, 74, 75])
def test_chunks_of_any_size_equal_one_piece(start: Start, kind: str, chunk: int) -> None:
    engine = start(kind)
    ids = random_ids(LENGTH)
    layers = (-1, 0, 3, 5)
    (whole,) = results(engine, [job(ids, layers, final_norm=True)])
    runner = engine.parts.runner
    before = runner.chunk_tokens
    try:
        runner.chunk_tokens = chunk
        (pieces,) = results(engine, [job(ids, layers, final_norm=True)])
    finally:
        runner.chunk_tokens = before
    # float32: the recurrence is summed in other blocks; eight layers amplify 1e-7 to about 1e-5 of a row's size
    scale = np.linalg.norm(whole.states, axis=-1, keepdims=True)
    assert np.max(np.abs(pieces.states - whole.states) / scale) < 2e-5


def test_a_chunk_that_lost_its_recurrent_state_is_far_outside_the_tolerance(start: Start) -> None:
    """The tolerance above means something: running the second chunk as if it were the start differs visibly."""
    ids = random_ids(LENGTH)
    (whole,) = results(start("hybrid"), [job(ids, (2,))])
    (restarted,) = results(start("hybrid"), [job(ids[40:], (2,))])
    difference = np.abs(restarted.states[0] - whole.states[0, 40:]) / np.linalg.norm(
        whole.states[0, 40:], axis=-1, keepdims=True
    )
    assert np.max(difference) > 1e-2
