"""A process that is killed without warning, and the one that goes on after it."""

import json
import signal
import subprocess
import sys
from collections import Counter

from tauscope_client.extract.index import file_xxh3

NUM_TEXTS = 200
"""Enough to be in the middle of the work when the signal arrives."""
CONCURRENCY = 4


def test_after_kill_9_every_sample_is_there_once_and_equal_to_an_undisturbed_run(cli, services, tmp_path):
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"id": f"t{n}", "prompt_ids": [3 + n % 99, 4], "response_ids": [5] * (1 + n % 30)} for n in range(NUM_TEXTS)
    ]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--layers", "1,16", "--layout", "specforge-dflash", "--loss", "all", "--concurrency", str(CONCURRENCY))
    program = (sys.executable, "-m", "tauscope_client.cli", "extract", str(texts), "--out", str(tmp_path / "out"))
    line = [*program, *options, "--target", services.target_url]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert any(said.startswith("extract: 1/") for said in process.stderr)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    finished = (tmp_path / "out" / "index.jsonl").read_text().count("\n")
    assert finished
    services.ledger.reset()
    code, said = cli(texts, "--out", tmp_path / "out", *options)
    assert code == 0 and f"{finished} of {NUM_TEXTS} samples were finished before" in said
    # The service may still have been at work for the dead process.
    assert NUM_TEXTS - finished <= services.ledger.count("hidden") <= NUM_TEXTS - finished + CONCURRENCY
    assert cli(texts, "--out", tmp_path / "whole", *options)[0] == 0

    def content(folder):
        return {
            str(path.relative_to(folder)): file_xxh3(path) for path in (folder / "data").rglob("*") if path.is_file()
        }

    assert content(tmp_path / "out") == content(tmp_path / "whole") and len(content(tmp_path / "out")) == NUM_TEXTS
    ids = Counter(json.loads(line)["id"] for line in (tmp_path / "out" / "index.jsonl").read_text().splitlines())
    assert set(ids.values()) == {1} and len(ids) == NUM_TEXTS
