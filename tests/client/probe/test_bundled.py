"""The probe on the bundled models, over both services as their own programs: planted faults are found, none invented.

A fault is planted in the configuration: the weights stay those of the healthy drafter, and what the folder declares
about them becomes wrong.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import demo
from tauscope_client.addresses import Addresses
from tauscope_client.freezing import freeze
from tauscope_client.probe.probing import Probe, ProbeSettings, probe
from tauscope_client.probe.texts import cut
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.record import Reference
from tauscope_client.references.stored import read_references

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RESPONSE_TOKENS = 64
"""Of each of the ten texts: enough for every fault below, and a minute or two a drafter on two cores."""

Config = dict[str, Any]
SLIDING = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 16, "use_sliding_window": True}


def _taps(shift: int) -> Callable[[Config], Config]:
    def changed(config: Config) -> Config:
        own = config["dflash_config"]
        return {"dflash_config": own | {"target_layer_ids": [tap + shift for tap in own["target_layer_ids"]]}}

    return changed


class Fault(NamedTuple):
    """A change of the configuration, and the condition that must win.

    Some faults cost little on the average text; ten texts then rightly end in "cannot tell", and more decide.
    """

    change: Callable[[Config], Config]
    wins: str
    wants_more_texts: bool = False


FAULTS = {
    "taps-one-too-high": Fault(_taps(1), "taps -1"),
    "taps-one-too-low": Fault(_taps(-1), "taps +1"),
    "theta-default": Fault(lambda _: {"rope_theta": 1e4}, "theta 1e+06"),
    "theta-too-large": Fault(lambda _: {"rope_theta": 1e7}, "theta 1e+06"),
    "anchor-first": Fault(lambda _: {"sample_from_anchor": True}, "layout fill-in"),
    "window": Fault(lambda _: SLIDING | {"is_causal": False}, "window full"),
    "causal": Fault(lambda _: {"is_causal": True}, "block bidirectional", wants_more_texts=True),
    # its first fifteen rows draft nearly as well before thirty-one masks, and the further rows are not bad either
    "block-too-large": Fault(lambda _: {"block_size": 32}, "block 16", wants_more_texts=True),
    "block-too-small": Fault(lambda _: {"block_size": 8}, "block 16", wants_more_texts=True),
}
WRITE = {
    "clamp(value, low, high)": "Limit a number to a range.",
    "count_words(text)": "Count how often each word occurs in a string.",
    "is_prime(n)": "Check whether a number is prime.",
    "merge_dicts(first, second)": "Merge two dictionaries, the second one wins.",
    "read_json(path)": "Read a JSON file and return its content.",
    "chunked(items, size)": "Split a list into chunks of a given size.",
    "remove_duplicates(items)": "Remove duplicates from a list and keep the order.",
    "to_snake_case(name)": "Convert a camel case name to snake case.",
    "list_files(folder, suffix)": "List all files in a folder that end with a suffix.",
    "fibonacci(n)": "Return the first n Fibonacci numbers.",
}
COMPLETE = {
    "def mean(values):": "Return the arithmetic mean of a list of numbers.",
    "def normalize(vector):": "Scale a vector to unit length.",
    "def parse_date(text, fmt='%Y-%m-%d'):": "Parse a date string.",
    "def transpose(matrix):": "Return the transpose of a matrix.",
    "def get_value(config, key, default=None):": "Return a value from a nested configuration.",
    "def pad_sequences(sequences, value=0):": "Pad sequences to the same length.",
    "def save_checkpoint(model, path):": "Save the state of a model to a file.",
    "def confusion_matrix(y_true, y_pred):": "Compute the confusion matrix.",
    "def retry(func, attempts=3):": "Call a function again until it succeeds.",
    "def find_max(items, key=None):": "Return the largest item.",
}
TRAINED = {"drafter-leak": "context +1", "drafter-shifted": "taps +1", "drafter-theta": "theta 10000"}
"""Drafters that were trained with a fault, where they are bundled."""

BUNDLED = [name for name in TRAINED if (demo.MODELS / name).exists()]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder = tmp_path_factory.mktemp("planted")
    drafters = {"trained": demo.MODELS / "drafter-a", "early": demo.MODELS / "drafter-b" / "checkpoint.pt"}
    for name, fault in FAULTS.items():
        drafters[name] = folder / name
        shutil.copytree(demo.MODELS / "drafter-a", drafters[name])
        path = drafters[name] / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | fault.change(config)))
    for path in sorted(demo.MODELS.glob("drafter-*")):
        if path.name not in {"drafter-a", "drafter-b"} and (path.name in TRAINED or path.name == "drafter-small"):
            drafters[path.name] = path
    target_port, drafter_port = demo.free_port(), demo.free_port()
    addresses = Addresses(f"http://127.0.0.1:{target_port}", f"http://127.0.0.1:{drafter_port}", None)
    target = ["--model", str(demo.MODELS / "target"), "--port", str(target_port)]
    target += ["--device", "cpu", "--allow-reference-kernels"]
    drafter = ["--target-url", addresses.target_url, "--target-model", str(demo.MODELS / "target")]
    drafter += ["--port", str(drafter_port), "--device", "cpu"]
    for name, path in drafters.items():
        drafter += ["--drafter", f"{name}={path}"]
    with ExitStack() as stack:
        for name, arguments, url in (
            ("tauscope-target", target, addresses.target_url),
            ("tauscope-drafter", drafter, addresses.drafter_url),
        ):
            stack.enter_context(demo.service(name, arguments, url=url, log_path=folder / f"{name}.log"))
        yield addresses


@pytest.fixture(scope="module")
def more_texts(services: Addresses, tmp_path_factory: pytest.TempPathFactory) -> list[Reference]:
    """Twenty further prompts of the demo's kind, answered by the bundled target."""
    asked = [f"Write a Python function `{name}`. {what}" for name, what in WRITE.items()]
    asked += [
        f'Complete this Python function.\n\n```python\n{head}\n    """{what}"""\n```' for head, what in COMPLETE.items()
    ]
    records = [{"id": f"more-{at}", "messages": [{"role": "user", "content": text}]} for at, text in enumerate(asked)]
    path = tmp_path_factory.mktemp("more") / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with services.open_target() as target:
        plan = ReferencePlan(max_new_tokens=RESPONSE_TOKENS, tail_tokens=0)
        frozen = freeze(
            load_prompts(path),
            plan,
            path.with_name("references.jsonl"),
            target=target,
            source=EmbeddedSource(target),
            progress=SilentProgress(),
        )
    assert len(frozen.references) == len(asked)
    return list(frozen.references)


def run(services: Addresses, drafter: str, out: Path, more: Sequence[Reference] = ()) -> Probe:
    references = [cut(one, RESPONSE_TOKENS) for one in [*read_references(demo.DEMO / "references.jsonl"), *more]]
    with services.open_both() as (target_client, drafter_client):
        return probe(
            ProbeSettings(drafter=drafter, passed={}),
            references,
            out,
            target=target_client,
            drafter=drafter_client,
            progress=SilentProgress(),
        )


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_planted_in_the_configuration_is_found(
    services: Addresses, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    more = request.getfixturevalue("more_texts") if FAULTS[name].wants_more_texts else ()
    verdict = run(services, name, tmp_path, more).verdict
    assert verdict.kind == "found", verdict.headline
    assert verdict.findings[0].condition.name == FAULTS[name].wins


@pytest.mark.parametrize("num_texts", [10, 30])
@pytest.mark.parametrize("name", ["trained", "early"])
def test_a_healthy_drafter_gets_no_alarm(
    services: Addresses, more_texts: list[Reference], tmp_path: Path, name: str, num_texts: int
) -> None:
    found = run(services, name, tmp_path, more_texts[: num_texts - 10])
    assert found.verdict.kind != "found", found.verdict.headline
    judged_alike = [effect for effect in found.effects if effect.condition.counts == "accepted"]
    assert all(effect.gain <= found.verdict.floor for effect in judged_alike)
    assert found.content["dependence"]["worth"] > 0.5  # it does live on the states


@pytest.mark.skipif(not BUNDLED, reason="no drafter that was trained with a fault is bundled")
@pytest.mark.parametrize("name", BUNDLED)
def test_a_fault_of_training_is_found(services: Addresses, tmp_path: Path, name: str) -> None:
    verdict = run(services, name, tmp_path).verdict
    assert verdict.kind == "found", verdict.headline
    assert verdict.findings[0].condition.name == TRAINED[name]


@pytest.mark.skipif(not (demo.MODELS / "drafter-small").exists(), reason="no healthy drafter of that size is bundled")
def test_a_healthy_drafter_of_the_size_of_the_planted_ones_gets_no_alarm(services: Addresses, tmp_path: Path) -> None:
    verdict = run(services, "drafter-small", tmp_path).verdict
    assert verdict.kind != "found", verdict.headline
