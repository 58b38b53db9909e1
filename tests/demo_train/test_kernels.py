"""The repaired backward step of the gated delta rule against autograd through the equations it differentiates."""

import pytest
import torch
from deploy.demo.train.kernels import chunk_gradients


def local_objective(*, q, k, v, w, g, h, u_grad, do, dh, scale, chunk):
    """Scalar whose gradients the step computes: outputs and next states weighted by their gradients, values by theirs.

    Loops over chunks and rows in float64; nothing of the implementation is used.
    """
    batch, seq, heads, _ = q.shape
    total = q.new_zeros(())
    for b in range(batch):
        for n in range(seq // chunk):
            for a in range(heads):
                rows = range(n * chunk, (n + 1) * chunk)
                last = g[b, rows[-1], a]
                state = 2**last * h[b, n, a]
                for i in rows:
                    out = 2 ** g[b, i, a] * (q[b, i, a] @ h[b, n, a])
                    for j in range(rows[0], i + 1):
                        out = out + 2 ** (g[b, i, a] - g[b, j, a]) * (q[b, i, a] @ k[b, j, a]) * v[b, j, a]
                    total = total + scale * (out @ do[b, i, a])
                    state = state + 2 ** (last - g[b, i, a]) * torch.outer(k[b, i, a], v[b, i, a])
                    total = total - (w[b, i, a] @ h[b, n, a]) @ u_grad[b, i, a]
                total = total + (state * dh[b, n, a]).sum()
    return total


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_chunk_gradients_equal_autograd_through_the_chunk_equations():
    torch.manual_seed(0)
    batch, seq, heads, key, value, chunk, scale = 1, 8, 2, 3, 5, 4, 0.7
    q, k, w = (draw(batch, seq, heads, key).requires_grad_() for _ in range(3))
    v, do, dv = (draw(batch, seq, heads, value) for _ in range(3))
    h, dh = (draw(batch, seq // chunk, heads, key, value) for _ in range(2))
    steps = -torch.rand(batch, seq // chunk, chunk, heads, dtype=torch.float64)
    g = steps.cumsum(2).reshape(batch, seq, heads).requires_grad_()

    local_objective(q=q, k=k, v=v, w=w, g=g, h=h, u_grad=dv, do=do, dh=dh, scale=scale, chunk=chunk).backward()
    found = chunk_gradients(*(x.detach() for x in (q, k, v, do, h, dh, w, g, dv)), scale=scale, chunk_size=chunk)

    wanted = (q.grad, k.grad, w.grad, g.grad / torch.log(torch.tensor(2.0, dtype=torch.float64)))
    for name, a, b in zip(("q", "k", "w", "g"), found, wanted, strict=True):
        # float32 inside: relative error a few 1e-7 per product, sums of tens of terms
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_a_sequence_that_is_no_whole_number_of_chunks_is_refused():
    x = torch.zeros(1, 6, 1, 2)
    state = torch.zeros(1, 1, 1, 2, 2)
    with pytest.raises(ValueError, match="seq=6"):
        chunk_gradients(x, x, x, x, state, state, x, x[..., 0], x, chunk_size=4)
