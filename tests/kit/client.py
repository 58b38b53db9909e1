"""Both services without weights, running, and settings for an evaluation over three prompts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kit.engines import TableModel
from kit.serve import running
from kit.table_services import Ledger, drafter_app, target_app
from tauscope_client.addresses import Addresses
from tauscope_client.evaluate import EvalSettings
from tauscope_client.references.collect import ReferencePlan

PROMPTS = [
    {"id": "a", "split": "train", "category": "x", "messages": [{"role": "user", "content": "one"}]},
    {"id": "b/β", "split": "fresh", "category": "y", "text": "raw text"},
    {"id": "c", "split": "fresh", "category": "x", "messages": [{"role": "user", "content": "three"}]},
]


@dataclass
class Services:
    """Two running services and what they were asked."""

    target_url: str
    drafter_url: str
    model: TableModel
    ledger: Ledger

    def addresses(self) -> Addresses:
        return Addresses(self.target_url, self.drafter_url, None)


@contextmanager
def table_services(*, model: TableModel | None = None, target=None, drafter=None) -> Iterator[Services]:
    """Run both; `target` and `drafter` are further arguments of the two apps."""
    model = model if model is not None else TableModel()
    ledger = Ledger()
    salts = {"good": 0, "bad": 1}
    with (
        running(target_app(model, ledger, **(target or {}))) as target_url,
        running(drafter_app(model, ledger, **{"salts": salts, **(drafter or {})})) as drafter_url,
    ):
        yield Services(target_url, drafter_url, model, ledger)


def eval_settings(*drafters, trees=(), **plan) -> EvalSettings:
    references = ReferencePlan(**{"max_new_tokens": 40, "tail_tokens": 4, **plan})
    return EvalSettings(drafters=drafters or ("good", "bad"), references=references, tree_budgets=trees, passed={})
