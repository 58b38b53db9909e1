"""Slow references of the sequential families, one anchor and one token at a time, in float64."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from drafter import reference
from drafter.reference import Weights, norm, silu
from kit import drafters

Rows = list[tuple[list[int], Tensor]]
Choose = Callable[[Tensor], int]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    out = w[f"{name}.weight"].double() @ x
    return out + w[f"{name}.bias"].double() if f"{name}.bias" in w else out


class Walk:
    """Collects the rows of one anchor; `known` gives labels to follow in place of own drafts."""

    def __init__(self, known: list[int] | None, top_k: int) -> None:
        self.known, self.top_k = known, top_k
        self.rows: Rows = []

    def take(self, logits: Tensor, ids: Tensor | None = None) -> int:
        """Rank one row (columns named by `ids`), and give the token the next step reads."""
        best, logprobs = reference.ranked(reference.log_softmax(logits), self.top_k)
        named = [int(b) if ids is None else int(ids[b]) for b in best]
        self.rows.append((named, logprobs))
        step = len(self.rows) - 1
        return self.known[step] if self.known is not None and step < len(self.known) else named[0]


def dspark(w: Weights, block: Tensor, anchor: int, walk: Walk, kind: str) -> None:
    head = drafters.shared_tables()["lm_head.weight"].double()
    rank = w["markov_head.markov_w1.weight"].shape[1]
    state, previous = torch.zeros(rank).double(), anchor
    for h in block:
        e = w["markov_head.markov_w1.weight"][previous].double()
        mixed = e
        if kind == "gated":
            mixed = sigmoid(linear(w, "markov_head.gate_proj", torch.cat((h, e)))) * e
        if kind == "rnn":
            joint = linear(w, "markov_head.joint_proj", torch.cat((state, e, h)))
            g, c, o = joint[:rank], joint[rank : 2 * rank], joint[2 * rank :]
            state = sigmoid(g) * state + (1 - sigmoid(g)) * torch.tanh(c)
            mixed = torch.tanh(o)
        previous = walk.take(head @ h + w["markov_head.markov_w2.weight"].double() @ mixed)


def domino(w: Weights, block: Tensor, anchor: int, walk: Walk, pure: int) -> None:
    tables = drafters.shared_tables()
    head, embedding = tables["lm_head.weight"].double(), tables["embed_tokens.weight"].double()
    gru = torch.nn.GRU(drafters.HIDDEN, 10, bias=False).double()
    gru.weight_ih_l0.data = w["prefix_gru.weight_ih_l0"].double()
    gru.weight_hh_l0.data = w["prefix_gru.weight_hh_l0"].double()
    tokens = [anchor]
    for i, z in enumerate(block):
        logits = head @ z
        if i >= pure:
            state = gru(embedding[tokens].unsqueeze(1))[1].detach().flatten()
            inner = w["embed_proj.0.weight"].double() @ torch.cat((z, state))
            logits = logits + w["embed_proj.2.weight"].double() @ silu(inner)
        tokens.append(walk.take(logits))


def convolution_wrap(w: Weights) -> Any:
    """Goes around every sublayer of a DFlash2 backbone."""

    def wrap(layer: int, name: str, u: list[Tensor], sublayer: Any) -> list[Tensor]:
        at = f"layers.{layer}.{name}_conv"
        base = w[f"{at}.base_kernel"].double()
        _, kernel, hidden = base.shape
        kernels = []
        for row in u:
            delta = (w[f"{at}.kernel_projection.weight"].double() @ row).reshape(2, kernel, -1)
            group = hidden // delta.shape[2]
            one = base.clone()
            for c in range(hidden):
                one[:, :, c] += delta[:, :, c // group]
            kernels.append(one)

        def filtered(side: int, rows: list[Tensor]) -> list[Tensor]:
            return [
                sum((kernels[i][side, t] * rows[i - t] for t in range(kernel) if i >= t), torch.zeros(hidden).double())
                for i in range(len(rows))
            ]

        return filtered(1, sublayer(filtered(0, u)))

    return wrap


def dflash2(w: Weights, block: Tensor, anchor: int, walk: Walk, candidates: int) -> None:
    head = drafters.shared_tables()["lm_head.weight"].double()
    previous = anchor
    for h in block:
        ids, logits = reference.ranked(head @ h, candidates)
        projected = w["candidate_selector.hidden_projection.weight"].double() @ h
        query = w["candidate_selector.predecessor_codebook"][previous].double() * projected
        scores = logits + w["candidate_selector.successor_codebook"][ids].double() @ query
        previous = walk.take(scores, ids)


def eagle3(
    w: Weights, config: Mapping[str, Any], states: Tensor, ids: list[int], p: int, *, walk: Walk, how: Any
) -> None:
    """`how`: norm_before_residual, norm_output, layers, mask (P-EAGLE), drafts, head, target_ids."""
    embedding = drafters.shared_tables()["embed_tokens.weight"].double()
    layers, head = how.get("layers", 1), how["head"].double()
    config = {"head_dim": 8, **config}

    def first(g: Tensor, token: int) -> tuple[Tensor, Tensor]:
        normed = norm(g, w["midlayer.hidden_norm.weight"])
        u = torch.cat((norm(embedding[token], w["midlayer.input_layernorm.weight"]), normed))
        return (normed if how.get("norm_before_residual") else g), u

    def run(slots: list[tuple[Tensor, int]]) -> Tensor:
        """Output of the last slot, everything recomputed; slots are (g, token) in order."""
        pairs = [first(g, token) for g, token in slots]
        x, u = [a for a, _ in pairs], [b for _, b in pairs]
        places = list(range(len(slots)))
        for layer in range(layers):
            at = "midlayer" if layer == 0 else f"layers.{layer}"
            if layer:
                u = [norm(row, w[f"{at}.input_layernorm.weight"]) for row in x]
            out = reference.attention(
                w, f"{at}.self_attn", config, u, u, sees=lambda i, j: j <= i, places=(places, places)
            )
            x = [a + o for a, o in zip(x, out, strict=True)]
            inner = [norm(row, w[f"{at}.post_attention_layernorm.weight"]) for row in x]
            x = [a + reference.mlp(w, f"{at}.mlp", row) for a, row in zip(x, inner, strict=True)]
        return x[-1]

    def fc(t: int) -> Tensor:
        return w["fc.weight"].double() @ states[:, t].double().reshape(-1)

    slots = [(fc(t), ids[t + 1]) for t in range(p)]
    o = run(slots)
    for step in range(how["drafts"]):
        token = walk.take(head @ norm(o, w["norm.weight"]), how.get("target_ids"))
        if step + 1 == how["drafts"]:
            break
        if how.get("mask") is not None:
            slots.append((w["fc.weight"].double() @ w["mask_hidden"].double().flatten(), how["mask"]))
        else:
            slots.append((norm(o, w["norm.weight"]) if how.get("norm_output") else o, token))
        o = run(slots)


def mtp(
    w: Weights, states: Tensor, ids: list[int], p: int, walk: Walk, *, drafts: int, final_norm: Tensor | None
) -> None:
    tables = drafters.shared_tables()
    embedding, head = tables["embed_tokens.weight"].double(), tables["lm_head.weight"].double()
    heads, kv, hd, rotated, theta = 4, 2, 8, 4, 10000.0

    def plus(x: Tensor, name: str) -> Tensor:
        return norm(x, 1 + w[f"mtp.{name}.weight"].double())

    def turn(x: Tensor, position: int) -> Tensor:
        return torch.cat((reference.rope(x[:rotated], position, theta), x[rotated:]))

    def run(slots: list[tuple[Tensor, int]]) -> Tensor:
        x = [
            w["mtp.fc.weight"].double()
            @ torch.cat((plus(embedding[token], "pre_fc_norm_embedding"), plus(h, "pre_fc_norm_hidden")))
            for h, token in slots
        ]
        u = [plus(row, "layers.0.input_layernorm") for row in x]
        at = "mtp.layers.0.self_attn"
        keys, values = [], []
        for t, row in enumerate(u):
            k = (w[f"{at}.k_proj.weight"].double() @ row).reshape(kv, hd)
            keys.append([turn(plus(one, "layers.0.self_attn.k_norm"), t) for one in k])
            values.append((w[f"{at}.v_proj.weight"].double() @ row).reshape(kv, hd))
        last = len(slots) - 1
        projected = (w[f"{at}.q_proj.weight"].double() @ u[last]).reshape(heads, 2 * hd)
        outputs = []
        for h in range(heads):
            q = turn(plus(projected[h, :hd], "layers.0.self_attn.q_norm"), last)
            g = h // (heads // kv)
            share = torch.softmax(torch.stack([q @ k[g] for k in keys]) / math.sqrt(hd), 0)
            out = sum(s * v[g] for s, v in zip(share, values, strict=True))
            outputs.append(out * sigmoid(projected[h, hd:]))
        y = x[last] + w[f"{at}.o_proj.weight"].double() @ torch.cat(outputs)
        inner = plus(y, "layers.0.post_attention_layernorm")
        renamed = {k.removeprefix("mtp.layers.0."): v for k, v in w.items()}
        return plus(y + reference.mlp(renamed, "mlp", inner), "norm")

    def state(t: int) -> Tensor:
        raw = states[0, t].double()
        return raw if final_norm is None else norm(raw, final_norm)

    slots = [(state(t), ids[t + 1]) for t in range(p)]
    y = run(slots)
    for _ in range(drafts):
        token = walk.take(head @ y)
        slots.append((y, token))
        y = run(slots)
