"""Which pass, which chunk and how much of streamed weights fit into the memory that is there, and which is fastest.

Streamed weights compete with activations. A pass takes at least as long as its weights take over the bus, so it should
hold many tokens; a layer computes faster in large chunks; and with more weights held at once, copies and computation
overlap better in small passes. Long prompts come first, then what is estimated to be fastest, from rates measured on
one H200 in the shape of a 27B hybrid (on other machines both rates are lower by about as much).
"""

from tauscope_target.memory import (
    CONTEXT_BYTES,
    LONG_RING,
    MIN_CHUNK_TOKENS,
    RESERVE_BYTES,
    Budget,
    Mode,
    ModelSizes,
    RingShape,
    device_floor,
    head_work_bytes,
)

MOST_TOKENS = 16_384
"""Largest pass that is chosen without being asked for: larger ones are no faster per token."""
LONG_TOKENS = 131_072
"""Prompts of this length should fit: chunks of long passes are made smaller for it."""
LONG_CHUNKS = (4096, 2048, 1024, 512)
"""Chunks of long passes: with a thousand tokens copies of the residual stream hide behind the computation."""
CHUNK_STEP = 64
"""Chunks are multiples of what gated delta kernels work on at once."""
BALANCE_TOKENS = 9700
"""Tokens for which a layer computes as long as its weights take over the bus (13.8 ms, and 1.4 us a token)."""
MIXER_COMPUTE = 0.43
"""Share of the mixer in a layer's time."""
CUT_TOKENS = 130
"""A chunk costs as much more as this many tokens (16,384 tokens in chunks of 8192: 1.02 times, of 2048: 1.06 times)."""
BUFFERED_CHUNKS = 3
"""Chunks of a residual stream in host memory that are on the device."""


def overlapped(ring: RingShape, sizes: ModelSizes, *, copy: float, compute: float) -> float:
    """Time of a pass whose weights take `copy` over the bus and whose layers take `compute`.

    With cells for one layer, each half is copied while the other computes; with a spare matrix, that part of the
    next MLP is copied while the MLP before it computes, too; with more, copies never wait for long.
    """
    if ring.mlps > 1 or not sizes.mlp_bytes:
        return max(copy, compute)
    mlp_copy = copy * sum(sizes.mlp_bytes) / sum(sizes.layer_bytes)
    mixer_copy = copy - mlp_copy
    early = mlp_copy * ring.spare / sizes.mlp_matrices if ring.spare else 0.0
    mixer, mlp = MIXER_COMPUTE * compute, (1 - MIXER_COMPUTE) * compute
    # from one MLP's start to the next one's: its weights have arrived, and the mixer before it has run
    return max(max(mlp, mixer_copy + early) + mlp_copy - early, max(mlp, mixer_copy) + mixer)


def fit(
    sizes: ModelSizes,
    mode: Mode,
    available_bytes: int,
    *,
    pass_tokens: int | None,
    chunk_tokens: int | None,
    ring: RingShape | None = None,
    most_tokens: int = MOST_TOKENS,
) -> Budget | None:
    """The best pass that fits into `available_bytes` of allocations, or None.

    Args:
        sizes: of the model.
        mode: where weights lie.
        available_bytes: for tensors; context and reserve are not part of it.
        pass_tokens: asked for by name, or None for as many as fit, up to `most_tokens`.
        chunk_tokens: asked for by name, or None.
        ring: how much of streamed weights the device holds, or None to choose.
        most_tokens: largest pass that is chosen without being asked for.
    """
    wanted = pass_tokens or most_tokens
    least = pass_tokens or MIN_CHUNK_TOKENS
    shapes = sizes.ring_shapes if ring is None else (ring,)
    found = [
        budget
        for shape in (shapes if mode == "streamed" else shapes[:1])
        if (budget := _fit_ring(sizes, mode, available_bytes, shape, wanted=wanted, least=least, chunk=chunk_tokens))
    ]
    found.reverse()  # of equals the largest ring
    return min(found, key=lambda budget: _preference(sizes, budget), default=None)


def fit_cap(
    sizes: ModelSizes,
    mode: Mode,
    cap_bytes: int,
    *,
    context_bytes: int = CONTEXT_BYTES,
    pass_tokens: int | None = None,
    chunk_tokens: int | None = None,
    ring: RingShape | None = None,
) -> Budget | None:
    """The best pass for a process that may take `cap_bytes` of a device in all, or None.

    Args:
        sizes: of the model.
        mode: where weights lie.
        cap_bytes: most memory of the process as the driver reports it.
        context_bytes: what it takes beside tensors.
        pass_tokens: as for `fit`.
        chunk_tokens: as for `fit`.
        ring: as for `fit`.
    """
    available = cap_bytes - context_bytes - RESERVE_BYTES
    return fit(sizes, mode, available, pass_tokens=pass_tokens, chunk_tokens=chunk_tokens, ring=ring)


def _fit_ring(
    sizes: ModelSizes, mode: Mode, available_bytes: int, ring: RingShape, *, wanted: int, least: int, chunk: int | None
) -> Budget | None:
    """The largest pass with a given ring: half of the room for a chunk at first, then what the pass leaves."""
    # logits are computed when no layer computes: they share the room of a chunk
    work = head_work_bytes(sizes, mode)
    held = device_floor(sizes, mode, ring) - work
    left = available_bytes - held
    per_chunk, per_pass = sizes.chunk_bytes_per_token, sizes.pass_bytes_per_token
    first = chunk or min(wanted, max(MIN_CHUNK_TOKENS, left // 2 // per_chunk))
    tokens = min(wanted, (left - max(work, first * per_chunk)) // per_pass)
    if tokens < least:
        return None
    chosen = min(tokens, chunk or max(first, (left - tokens * per_pass) // per_chunk))
    if chunk is None and chosen < tokens and chosen > CHUNK_STEP:
        chosen -= chosen % CHUNK_STEP
    at_once = max(work, chosen * per_chunk)
    on_device = (left - at_once) // per_pass
    left += held + work - device_floor(sizes, mode, LONG_RING)
    long_chunk, longest = _longest(sizes, left, chunk or max(chosen, LONG_CHUNKS[-1]), work=work)
    return Budget(
        pass_tokens=tokens,
        chunk_tokens=chosen,
        longest_tokens=max(longest, on_device),
        bytes=held + at_once + tokens * per_pass,
        device_tokens=on_device,
        long_chunk_tokens=long_chunk,
        ring=ring,
        ring_bytes=sizes.ring_bytes(ring) if mode == "streamed" else 0,
    )


def _longest(sizes: ModelSizes, left: int, chunk: int, *, work: int) -> tuple[int, int]:
    """Chunk and length of the longest prompt with its residual stream in host memory."""
    buffered = BUFFERED_CHUNKS * sizes.residual_bytes_per_token

    def at_once(tokens: int) -> int:
        return max(work, tokens * sizes.chunk_bytes_per_token) + tokens * buffered

    choices = [
        (tokens, (left - at_once(tokens)) // sizes.long_bytes_per_token)
        for tokens in (chunk, *(fewer for fewer in LONG_CHUNKS if fewer < chunk))
    ]
    return next((choice for choice in choices if choice[1] >= LONG_TOKENS), max(choices, key=lambda choice: choice[1]))


def _preference(sizes: ModelSizes, budget: Budget) -> tuple[int, float]:
    """Smallest is best: tokens that are missing in the longest prompt, then time."""
    return LONG_TOKENS - min(LONG_TOKENS, budget.longest_tokens or LONG_TOKENS), _cost(sizes, budget)


def _cost(sizes: ModelSizes, budget: Budget) -> float:
    """Estimated time per token, in full passes and in half-full ones; in units of a token's computation."""
    cost = 0.0
    for tokens in (budget.pass_tokens, budget.pass_tokens / 2):
        chunks = 1 if budget.chunk_tokens >= tokens else 1 + CUT_TOKENS / budget.chunk_tokens
        copy = BALANCE_TOKENS if budget.ring_bytes else 0.0
        cost += overlapped(budget.ring, sizes, copy=copy, compute=tokens * chunks) / tokens
    return cost
