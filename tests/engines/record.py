"""Records real answers of an engine: `python -m engines.record sglang [CASE...]`.

Each case becomes `tests/vectors/engines/ENGINE/CASE.json`. The prompts are those of `engines.prompts`; what is stored
holds no path of the machine it was recorded on.
"""

import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engines.asking import Asker
from engines.cases import Case
from engines.drafter import train
from engines.environments import ENVIRONMENTS, SetUpError, versions
from engines.groups import GROUPS, Group
from engines.layout import MODELS, VECTORS
from engines.processes import StartError
from engines.servers import ENGINES, Server, serving
from engines.smollm2 import obtain

__all__ = ["record"]


def record(name: str, only: Sequence[str] = ()) -> list[str]:
    """Record the cases of one engine, all of them or those named.

    Returns:
        What was not recorded, and why.
    """
    obtain()
    failures = []
    for group in GROUPS[name]:
        cases = [case for case in group.cases if not only or _case_name(case) in only]
        if not cases:
            continue
        try:
            if group.needs_drafter:
                train()
            with serving(
                ENGINES[name], extra=group.extra, environ=group.environ, key=group.key, label=group.name
            ) as server:
                for case in cases:
                    _record_case(server, group, case)
        except (SetUpError, StartError) as error:
            failures.append(f"{name} {group.name}: {error}")
    return failures


def _record_case(server: Server, group: Group, case: Case) -> None:
    ask = Asker(server, key=(group.key if group.send_key is None else group.send_key) or None)
    case(ask)
    path = VECTORS / server.engine.name / f"{_case_name(case)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_stored(ask, case), indent=1, ensure_ascii=False) + "\n")
    statuses = [exchange["answer"]["status"] for exchange in ask.transport.exchanges]
    sys.stdout.write(f"{server.engine.name} {_case_name(case)}: {statuses}\n")
    sys.stdout.flush()


def _stored(ask: Asker, case: Case) -> dict[str, Any]:
    engine = ask.server.engine.name
    options = [part.replace(str(MODELS), "/models") for part in ask.server.command[1:]]
    turn = None
    if ask.turn is not None:
        turn = {**asdict(ask.turn), "messages": [message.model_dump() for message in ask.turn.messages or ()]}
        del turn["sampling"]  # greedy, all of them
    return {
        "engine": engine,
        "case": _case_name(case),
        "about": (case.__doc__ or "").split("\n", maxsplit=1)[0],
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(ENVIRONMENTS[engine]),
        "options": [("PORT" if part == ask.server.url.rsplit(":", 1)[1] else part) for part in options],
        "turn": turn,
        "texts": ask.bridge.seen,
        "exchanges": ask.transport.exchanges,
    }


def _case_name(case: Case) -> str:
    return case.__name__.replace("_", "-")


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when something could not be recorded."""
    if not arguments or arguments[0] not in GROUPS:
        sys.stderr.write(f"usage: python -m engines.record {'|'.join(GROUPS)} [CASE...]\n")
        return 2
    failures = record(arguments[0], arguments[1:])
    for failure in failures:
        sys.stderr.write(f"NOT RECORDED {failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
