"""From logits to the distribution an engine samples from: temperature, then top-k, then top-p, renormalised."""

import torch
from torch import Tensor

from tauscope_drafter.contract import Sampling

GREEDY_TEMPERATURE = 1e-5  # below this engines take the argmax; dividing by less would overflow


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """float32 [n, V] probabilities of `logits` [n, V]; greedy rows have all mass on the first largest logit."""
    logits = logits.float()
    if sampling.temperature < GREEDY_TEMPERATURE:
        return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        weakest = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    probabilities = logits.softmax(-1)
    if sampling.top_p < 1.0:
        ordered, order = probabilities.sort(stable=True, dim=-1, descending=True)
        # kept: tokens whose mass before them is less than top_p, so that the first is always kept
        kept = (ordered.cumsum(-1) - ordered) < sampling.top_p
        probabilities = probabilities * torch.zeros_like(kept).scatter_(1, order, kept)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities
