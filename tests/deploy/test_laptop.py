"""The laptop: the client behind a slow link, both services on the other side. Hidden states stay off the link.

Two network namespaces, 40 ms of delay each way and 50 Mbit/s; the client's process cannot import torch.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.link import ADDRESSES, SlowLink, why_no_link

pytestmark = pytest.mark.soak

DEMO = Path(__file__).parents[2] / "deploy" / "demo"
MODELS = DEMO / "models"
DELAY_S, BITS_PER_S = 0.040, 50e6
BOX, LAPTOP = 0, 1
TARGET, DRAFTER = f"http://{ADDRESSES[BOX]}:30010", f"http://{ADDRESSES[BOX]}:30020"
LIMIT_S = 240
PROMPTS = DEMO / "prompts.jsonl"
NUM_PROMPTS = len(PROMPTS.read_text().splitlines())

CLIENT = """
import sys
for name in ("torch", "transformers", "fastapi", "uvicorn", "tauscope_serving", "tauscope_target", "tauscope_drafter"):
    sys.modules[name] = None  # importing it raises ImportError, as where it is not installed
from tauscope_client.cli import main
sys.exit(main(sys.argv[1:]))
"""

SCRAPE = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
"""


@pytest.fixture(scope="module")
def link() -> Iterator[SlowLink]:
    reason = why_no_link()
    if reason is not None:
        pytest.skip(reason)
    with SlowLink(delay_s=DELAY_S, bits_per_s=BITS_PER_S).up() as made:
        yield made


@contextlib.contextmanager
def service(link: SlowLink, name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Run a service on the box; only the other namespace can reach it."""
    program = str(Path(sys.executable).with_name(name))
    words = [program, *arguments, "--host", ADDRESSES[BOX], "--open-to-network", "--device", "cpu"]
    process = subprocess.Popen(
        link.command(BOX, [*words, "--log-level", "warning"]),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ) | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    emptying = threading.Thread(target=process.stderr.read)  # a full pipe would stop the service
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if "is ready at" in line:
                break
        else:
            raise RuntimeError("".join(said))
        emptying.start()
        yield
    finally:
        process.terminate()
        process.wait(60)
        if emptying.ident is not None:
            emptying.join(60)
        process.stderr.close()


@pytest.fixture(scope="module")
def box(link: SlowLink) -> Iterator[SlowLink]:
    target = ["--model", f"{MODELS}/target", "--allow-reference-kernels"]
    drafter = ["--target-url", TARGET, "--target-model", f"{MODELS}/target"]
    drafter += ["--drafter", f"trained={MODELS}/drafter-a", "--drafter", f"early={MODELS}/drafter-b/checkpoint.pt"]
    with service(link, "tauscope-target", target), service(link, "tauscope-drafter", drafter):
        yield link


@dataclass(frozen=True)
class Measured:
    """What one evaluation cost.

    Attributes:
        to_laptop, to_box: bytes of IP packets on the link.
        drafts: bytes of the drafter's answers.
        seconds: from start to end of the client.
        results: results.json of the run.
    """

    to_laptop: int
    to_box: int
    drafts: int
    seconds: float
    results: dict[str, Any]

    def show(self, what: str, states: int) -> None:
        """Print a line of the page on reliability."""
        print(
            f"{what}: {self.seconds:.1f} s for {NUM_PROMPTS} prompts; per prompt {kb(self.to_laptop)} to the laptop "
            f"({kb(self.drafts)} of them drafts), {kb(self.to_box)} to the box; {kb(states)} of hidden states computed"
        )


def kb(num_bytes: int) -> str:
    return f"{num_bytes / NUM_PROMPTS / 1e3:.1f} kB"


def metric(link: SlowLink, url: str, name: str) -> int:
    """Sum of a metric over its labels, asked from the box itself: over its loopback, not over the link."""
    words = [sys.executable, "-c", SCRAPE, f"{url}/metrics"]
    text = subprocess.run(link.command(BOX, words), check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout
    return sum(int(float(value)) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def evaluate(link: SlowLink, side: int, out: Path, *options: str) -> Measured:
    words = [sys.executable, "-c", CLIENT, "eval", str(PROMPTS), "--reference", f"file={DEMO / 'references.jsonl'}"]
    words += ["--target", TARGET, "--drafter-url", DRAFTER, "--out", str(out), *options]
    drafts = metric(link, DRAFTER, "tauscope_drafter_answer_bytes_total")
    before = [way.num_bytes for way in link.ways]
    began = time.monotonic()
    done = subprocess.run(link.command(side, words), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    to_laptop, to_box = (way.num_bytes - b for way, b in zip(link.ways, before, strict=True))
    drafts = metric(link, DRAFTER, "tauscope_drafter_answer_bytes_total") - drafts
    results = json.loads((out / "results.json").read_text())
    assert results["failures"] == []
    return Measured(to_laptop, to_box, drafts, seconds, results)


CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9), timeout=60)
except ConnectionRefusedError:
    print(time.monotonic() - began)
"""


def test_the_link_is_as_slow_as_it_says(link: SlowLink) -> None:
    said = subprocess.run(
        link.command(LAPTOP, [sys.executable, "-c", CONNECT, ADDRESSES[BOX]]),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert float(said) >= 2 * DELAY_S  # an address that refuses answers after one round trip
    print(f"round trip {1e3 * float(said):.0f} ms")


def test_an_evaluation_over_a_slow_link_leaves_the_hidden_states_on_the_box(box: SlowLink, tmp_path: Path) -> None:
    """What crosses the link are drafts and ids. Their size does not depend on the model's width, that of states does:

    the bundled target is 256 wide, a 27B is 5120 wide and its states take 20 times the bytes printed here.
    """
    one = evaluate(box, LAPTOP, tmp_path / "one", "--drafter", "trained", "--top-k", "1", "--tree-budgets", "none")
    states = metric(box, TARGET, "tauscope_target_store_bytes")
    both = evaluate(box, LAPTOP, tmp_path / "both")
    near = evaluate(box, BOX, tmp_path / "near")
    one.show("one drafter, its best candidate", states)
    both.show("two drafters, 8 candidates and trees of 64", states)
    near.show("the same without the link", states)
    assert one.to_laptop + one.to_box < states / 5
    for run in (one, both):
        # all that came is drafts, but for answers in JSON and headers: a copy of the states would not fit in
        assert run.drafts < run.to_laptop < run.drafts + states / 5
    assert (near.to_laptop, near.to_box) == (0, 0)
    assert both.results["comparisons"] == near.results["comparisons"]  # a slow link changes no number
