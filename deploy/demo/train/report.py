"""Evaluation of a pair: the demo's prompts with their stored answers, tau on them and on held-out prompts."""

import json
from dataclasses import dataclass
from typing import Any

from deploy.demo.train.answers import Answer, generate, prefill, take
from deploy.demo.train.chat import FRESH_PROMPTS, Pair, render
from deploy.demo.train.evaluation import Round, dflash_matches, summarise, walk_all
from deploy.demo.train.pair import PairRun

DEMO_TRAIN_PROMPTS = 5
TASKS = ("complete", "write", "docstring")


@dataclass
class DemoPrompt:
    """One prompt of the demo's table with the target's stored greedy answer."""

    name: str
    split: str
    pair: Pair
    answer: Answer


def answer_demo(run: PairRun, *, batch: int) -> list[DemoPrompt]:
    """Answer the demo's prompts, one by one and so unpadded by default: these token ids are stored as the demo's
    references.
    """
    seen = [
        i
        for i, a in zip(take(run.data.train, len(run.answers)), run.answers, strict=False)
        if a.has_ended and i.task != "docstring" and len(a.response) >= run.plan.drafter.block
    ][:DEMO_TRAIN_PROMPTS]
    wanted = [("fresh", pair) for pair in FRESH_PROMPTS] + [("train", Pair(i.task, i.user, "")) for i in seen]
    limit = run.plan.max_demo_tokens
    prompts = [run.data.tokenizer.encode(render(pair.user)).ids for _, pair in wanted]
    answers = generate(run.model, prompts, max_new_tokens=limit, batch=batch)
    demo = [
        DemoPrompt(f"{split}-{number}", split, pair, answer)
        for number, ((split, pair), answer) in enumerate(zip(wanted, answers, strict=True))
    ]
    lines = [
        {
            "id": d.name,
            "split": d.split,
            "category": d.pair.task,
            "messages": [{"role": "user", "content": d.pair.user}],
            "prompt_ids": d.answer.ids[: d.answer.prompt_tokens],
        }
        for d in demo
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    return demo


def evaluate(run: PairRun, prompts: list[DemoPrompt]) -> None:
    """Tau of the pair's drafters on held-out and demo prompts; writes ``eval.json``."""
    names = [n for n in ("drafter-a", "drafter-b") if (run.folder / n).exists()]
    demo = prefill(
        run.model,
        [d.answer for d in prompts],
        layers=run.layers,
        width=max(len(d.answer.ids) for d in prompts) + 1,
    )
    result: dict[str, Any] = {}
    block = run.drafter.block
    demo_rounds: dict[str, list[list[Round]]] = {}
    for name in names:
        match = dflash_matches(run.load_dflash(name, run.drafter), run.embedding)
        heldout, demo_rounds[name] = run.heldout_rounds(match), walk_all(match, demo)
        result[name] = {
            "fresh": summarise(
                [r for r, d in zip(demo_rounds[name], prompts, strict=True) if d.split == "fresh"], block
            ),
            "train": summarise(
                [r for r, d in zip(demo_rounds[name], prompts, strict=True) if d.split == "train"], block
            ),
            "all15": summarise(demo_rounds[name], block),
            "heldout": summarise(heldout, block),
        }
        for task in TASKS:
            chosen = [r for r, i in zip(heldout, run.heldout_items, strict=True) if i.task == task]
            result[name][f"heldout_{task}"] = summarise(chosen, block)
        run.log(f"  {name}: tau {[(k, v['tau_pooled'], v['interval_95']) for k, v in result[name].items()]}")
    result["prompts"] = [
        {
            "id": d.name,
            "split": d.split,
            "category": d.pair.task,
            "prompt": d.pair.user,
            "prompt_len": d.answer.prompt_tokens,
            "output_ids": d.answer.response,
            "text": run.data.tokenizer.decode(d.answer.response, skip_special_tokens=False),
            "ended": d.answer.has_ended,
            "prefill_agrees": float(demo.agreement[i]) == 1.0,
            "rounds": {n[-1]: [list(r) for r in demo_rounds[n][i]] for n in names},
            "tau": {n[-1]: summarise([demo_rounds[n][i]], block)["tau_pooled"] for n in names},
        }
        for i, d in enumerate(prompts)
    ]
    run.record.setdefault("demo_ended", {})[run.where] = sum(d.answer.has_ended for d in prompts)
    for name in names:
        run.record.setdefault("tau", {})[f"{name} on {run.where}"] = result[name]
    document = {"kind": run.shape.kind, "where": run.where, "eval": result}
    (run.folder / "eval.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
