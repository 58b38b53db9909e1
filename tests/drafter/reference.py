"""Slow reference networks in float64, one anchor and one row at a time, written from the published description.

Nothing is shared with the package: no cached keys, no batches, no merged softmax.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Sees = Callable[[int, int], bool]


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return weight.double() * x / torch.sqrt((x * x).mean() + eps)


def rope(x: Tensor, position: int, theta: float) -> Tensor:
    """Half-split rotation of one head vector over its whole length."""
    half = x.shape[0] // 2
    out = x.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / x.shape[0])
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def attention(
    w: Weights,
    at: str,
    config: Mapping[str, Any],
    queries: list[Tensor],
    keys: list[Tensor],
    *,
    sees: Sees,
    places: Any,
) -> list[Tensor]:
    """Rows of `queries` attend over rows of `keys`; `places` gives (query positions, key positions)."""
    heads, kv, hd = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    theta = config["rope_theta"]
    q_places, k_places = places

    def project(rows: list[Tensor], name: str, count: int, normed: str | None, at_places: list[int]) -> list[Any]:
        out = []
        for row, position in zip(rows, at_places, strict=True):
            flat = w[f"{at}.{name}.weight"].double() @ row
            if f"{at}.{name}.bias" in w:
                flat = flat + w[f"{at}.{name}.bias"].double()
            vectors = list(flat.reshape(count, hd))
            if name != "v_proj":
                if normed is not None:
                    vectors = [norm(v, w[f"{at}.{normed}.weight"]) for v in vectors]
                vectors = [rope(v, position, theta) for v in vectors]
            out.append(vectors)
        return out

    has_norm = f"{at}.q_norm.weight" in w
    q = project(queries, "q_proj", heads, "q_norm" if has_norm else None, q_places)
    k = project(keys, "k_proj", kv, "k_norm" if has_norm else None, k_places)
    v = project(keys, "v_proj", kv, None, k_places)
    result = []
    for i in range(len(queries)):
        heads_out = []
        for h in range(heads):
            group = h // (heads // kv)
            visible = [j for j in range(len(keys)) if sees(i, j)]
            scores = torch.stack([q[i][h] @ k[j][group] for j in visible]) / math.sqrt(hd)
            share = torch.softmax(scores, 0)
            heads_out.append(sum(s * v[j][group] for s, j in zip(share, visible, strict=True)))
        out = w[f"{at}.o_proj.weight"].double() @ torch.cat(heads_out)
        result.append(out + w[f"{at}.o_proj.bias"].double() if f"{at}.o_proj.bias" in w else out)
    return result


def mlp(w: Weights, at: str, x: Tensor) -> Tensor:
    gate = silu(w[f"{at}.gate_proj.weight"].double() @ x)
    return w[f"{at}.down_proj.weight"].double() @ (gate * (w[f"{at}.up_proj.weight"].double() @ x))


def fused(w: Weights, states: Tensor, position: int) -> Tensor:
    """hidden_norm(fc([taps])) of one position; `states` is [P, T, Ht]."""
    return norm(w["fc.weight"].double() @ states[:, position].double().reshape(-1), w["hidden_norm.weight"])


def plain_sees(p: int, i: int, j: int) -> bool:
    """Full attention: context keys 0..p-1 come first, then the whole block."""
    return True


def dflash_block(
    w: Weights,
    config: Mapping[str, Any],
    states: Tensor,
    token_ids: Tensor,
    p: int,
    *,
    embedding: Tensor,
    shift: int = 0,
    sees: Callable[[int, int, int, int], bool] | None = None,
    wrap: Callable[[int, str, list[Tensor], Callable[[list[Tensor]], list[Tensor]]], list[Tensor]] | None = None,
) -> Tensor:
    """Output of the drafter's norm for the rows of one block, [B, H].

    Args:
        shift: the context ends so many positions after p.
        sees: (layer, row offset i, absolute key position, is-block flag) -> visible; None sees everything.
        wrap: replaces a sublayer call, for families that put something around it.
    """
    size, mask = config["block_size"], config["dflash_config"]["mask_token_id"]
    ids = [int(token_ids[p])] + [mask] * (size - 1)
    x = [embedding[t].double() for t in ids]
    context = [fused(w, states, t) for t in range(p + shift)]
    places = ([p + i for i in range(size)], [*range(p + shift), *(p + i for i in range(size))])
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"

        def visible(i: int, j: int, layer: int = layer) -> bool:
            return sees is None or sees(layer, i, places[1][j], int(j >= p + shift))

        def attend(rows: list[Tensor], at: str = at, visible: Sees = visible) -> list[Tensor]:
            return attention(w, f"{at}.self_attn", config, rows, context + rows, sees=visible, places=places)

        def feed(rows: list[Tensor], at: str = at) -> list[Tensor]:
            return [mlp(w, f"{at}.mlp", row) for row in rows]

        for name, weight, sublayer in (
            ("attention", "input_layernorm", attend),
            ("mlp", "post_attention_layernorm", feed),
        ):
            u = [norm(row, w[f"{at}.{weight}.weight"]) for row in x]
            out = sublayer(u) if wrap is None else wrap(layer, name, u, sublayer)
            x = [row + o for row, o in zip(x, out, strict=True)]
    return torch.stack([norm(row, w["norm.weight"]) for row in x])


def log_softmax(logits: Tensor) -> Tensor:
    return logits - torch.logsumexp(logits, -1, keepdim=True)


def ranked(logprobs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best ids of one row by (value descending, id ascending), by sorting everything."""
    order = sorted(range(len(logprobs)), key=lambda i: (-float(logprobs[i]), i))[:k]
    return torch.tensor(order), logprobs[order]
