"""What every reported number means, in one line each. Reports print these beside the numbers."""

from types import MappingProxyType

__all__ = ["DEFINITIONS", "TOP_KS", "TREE_BUDGETS"]

# The k of the top-k columns: powers of two up to the 8 candidates a service returns unless asked for more.
TOP_KS = (1, 2, 4, 8)
# Draft nodes of a tree, root excluded: the budgets of the DDTree paper (arXiv 2604.12989).
TREE_BUDGETS = (16, 32, 64, 128, 256, 512, 1024)

_SCALARS = {
    "tau": "mean emitted tokens a round over the serving walk, pooled over all rounds; emitted = accepted + 1, cut at "
    "the end of the text",
    "tau_prompt_mean": "mean over prompts of each prompt's own mean emitted; prompts weigh alike however long they are",
    "tau_unclipped": "mean of accepted + 1 over the rounds of the serving walk, never cut; null unless the references "
    "run past the end far enough",
    "tau_stop_clipped": "as tau, cut at the first stop id only, not at the length limit; null unless references that "
    "reach the limit run past it far enough",
    "tau_all_anchors": "mean emitted over every response position, visited or not; another population than the walk, "
    "never the headline",
    "accept_rate": "accepted over verifiable draft tokens, both summed over the rounds of the serving walk; no bonus",
    "agreement": "share of response positions where the reference token is the target service's own argmax",
    "sglang_accept_length_pooled": "SpecForge benchmark on SGLang counters: sum of completion tokens (the prefill "
    "token included) / sum of verify steps; empty responses left out",
    "sglang_accept_length_mean": "z-lab benchmark on SGLang: mean over requests of spec_accept_length = completion "
    "tokens (the prefill token included) / verify steps; empty responses left out",
    "sglang_accept_rate_mean": "SGLang spec_accept_rate, mean over requests: accepted / (verify steps * K); no bonus",
    "vllm_acceptance_length": "vLLM spec-decode counters: 1 + accepted / drafts, pooled, counted before the text is "
    "cut at its end; null unless the references run past the end far enough",
    "vllm_acceptance_length_clipped": "vLLM's formula 1 + accepted / rounds on counts cut at the end of the text; a "
    "lower bound of what vLLM's counters would show where tokens past the end are unknown",
    "vllm_draft_acceptance_rate": "vLLM: accepted / drafted tokens, pooled, counted before the text is cut; null "
    "unless the references run past the end far enough",
    "zlab_acceptance_length_april": "z-lab/dflash of April 2026: mean over responses of the mean of accepted + 1, "
    "never cut; null unless the references run past the end far enough",
    "zlab_acceptance_length": "z-lab/dflash, newer: mean over responses of mean emitted, cut at the first stop id and "
    "at the length limit",
    "deepspec_acceptance_length": "DeepSpec: mean entry a round, pooled; entry = accepted + 1, but drafts up to and "
    "including a drafted stop id without + 1; not cut at the length limit",
    "deepspec_verify_rate": "DeepSpec: sum of entries / (sum of proposed drafts + rounds)",
}

_FAMILIES = {
    "topk_walk_tau_{k}": "tau of the walk in which a label among the {k} best of its row counts as accepted (jump by "
    "streak + 1, bonus counted)",
    "topk_streak_{k}": "mean longest prefix whose labels are all among the {k} best of their rows, over all response "
    "anchors, no bonus; what a full {k}-ary tree would accept",
}

_TREES = {
    "ddtree_tau_{m}": "mean emitted of the walk in which each round verifies the {m} most probable prefixes under the "
    "product of the block's marginals (DDTree, root excluded); null when stored candidates cannot decide every round; "
    "along sampled text a count too: DDTree verifies nodes by samples of the target, and the text is made of them",
}

_POPULATIONS = {"walk": "anchors the serving walk visits", "all": "all response anchors"}
_CURVES = {
    "prefix_rate_{p}": "position i: anchors whose first i drafts are all accepted / anchors; over {text}",
    "conditional_rate_{p}": "position i: anchors with at least i accepted / anchors with at least i-1 accepted; over "
    "{text}",
    "teacher_forced_accuracy_{p}": "position i: share of drafts that equal their label whatever came before, labels "
    "within the text; over {text}",
    "prefix_rate_proposed_{p}": "position i: anchors whose first i drafts are all accepted / anchors where at least i "
    "drafts could be verified (DeepSpec); over {text}",
}

_OTHERS = {
    "tau_by_width": "tau when only the first w drafts of each block are verified, w = 1..K (the block itself keeps its "
    "trained length)",
    "accepted_histogram": "rounds of the serving walk by accepted drafts, 0..K",
    "emitted_histogram": "rounds of the serving walk by emitted tokens, 0..K+1",
    "emitted_shares": "emitted_histogram divided by the rounds (z-lab's histogram)",
    "label_rank_histogram": "labels within the text by their place in the draft row, over all response anchors and "
    "block positions; the last entry counts labels not among the kept candidates",
    "label_rank_histogram_by_position": "label_rank_histogram for each block position on its own",
    "num_prompts": "prompts evaluated",
    "num_empty": "prompts whose text is over after the first token: no rounds, not part of tau",
    "num_rounds": "rounds of the serving walk",
    "num_anchors": "response anchors drafted at, the population of the columns over all anchors",
    "num_response_tokens": "response tokens up to the end of each text",
    "num_prompts_with_argmax": "prompts for which the target's own argmax was known",
}

# Of references sampled at a temperature above 0, or of `tauscope expect` along any text.
_EXPECTATIONS = {
    "expected_tau_{h}": "expectation, not a count: tokens / expected rounds of the serving walk along the reference's "
    "own tokens, pooled; each draft is accepted with chance {text}",
    "expected_emitted_{h}": "expectation, not a count: 1 + sum over k of the product of the first k acceptances, mean "
    "over response anchors, along the reference's own tokens; each draft is accepted with chance {text}",
    "expected_acceptance_{h}": "expectation, not a count: {text}, mean over draft positions within the text",
}
_CHANCES = {
    "sampled": "sum over tokens of min(p, q) of target and draft distributions (drafts are sampled)",
    "greedy": "p of the drafter's best token (drafts are greedy)",
}

# Needs costs.
_ESTIMATES = {
    "speed_up_estimate": "an estimate, not a measurement: tau / (1 + draft cost / target cost), batch size 1, a "
    "verification taken for as dear as a plain step unless its cost is given",
}

#: Name of every aggregate -> its definition.
DEFINITIONS = MappingProxyType(
    _SCALARS
    | {name.format(k=k): text.format(k=k) for name, text in _FAMILIES.items() for k in TOP_KS}
    | {name.format(m=m): text.format(m=m) for name, text in _TREES.items() for m in TREE_BUDGETS}
    | {name.format(p=p): text.format(text=words) for name, text in _CURVES.items() for p, words in _POPULATIONS.items()}
    | _OTHERS
    | {
        name.format(h=h): text.format(text=words)
        for name, text in _EXPECTATIONS.items()
        for h, words in _CHANCES.items()
    }
    | _ESTIMATES
)
