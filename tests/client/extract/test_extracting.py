"""Extractions of small data sets: what is in the files, and what is left after everything that can go wrong."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from tauscope_client.extract.index import file_xxh3
from tauscope_wire.errors import CheckpointError, InternalError, MismatchError, RequestError, TooLargeError
from tauscope_wire.messages import HiddenRequest


class Wrapped:
    """A client that calls `before` with every request for states."""

    def __init__(self, client, before):
        self.client, self.before = client, before

    def __getattr__(self, name):
        return getattr(self.client, name)

    def hidden(self, request):
        self.before(request)
        return self.client.hidden(request)


def index_of(folder):
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]


def content_of(folder):
    """Hash of every file of states by name."""
    return {str(path.relative_to(folder)): file_xxh3(path) for path in folder.rglob("*.safetensors")}


def test_every_file_holds_what_the_service_answers(run, services, texts, tmp_path):
    done = run(texts, tmp_path / "out")
    assert (done.num_samples, done.num_finished, done.num_tokens) == (4, 4, 5 + 4 + 5 + 30)
    assert done.num_bytes <= done.estimated_bytes
    entries = {entry["id"]: entry for entry in index_of(tmp_path / "out")}
    assert [entries[name]["num_loss_tokens"] for name in ("reference", "masked", "started", "long")] == [2, 2, 3, 10]
    masks = {"reference": [0, 0, 0, 1, 1], "masked": [0, 1, 1, 0], "started": [0, 0, 1, 1, 1]}
    for name, mask in masks.items():
        path = tmp_path / "out" / entries[name]["path"]
        with safe_open(path, "np") as file:
            assert file.get_tensor("loss_mask").tolist() == mask
            facts = json.loads(file.metadata()["tauscope"])
            assert (facts["id"], facts["planes"], facts["model"]) == (name, [1, 16], "table-model")
            assert file.get_slice("hidden_states").get_shape() == [len(mask), 2, 8]
            assert file.get_slice("hidden_states").get_dtype() == "BF16"


def test_states_are_the_services_own_in_token_order(run, services, texts, tmp_path):
    run(texts, tmp_path / "out", dtype="float32")
    entry = next(entry for entry in index_of(tmp_path / "out") if entry["id"] == "masked")
    with safe_open(tmp_path / "out" / entry["path"], "np") as file:
        states = file.get_tensor("hidden_states")
    # The service without weights counts through planes, then tokens, then values.
    assert (states == np.arange(1, 1 + 2 * 4 * 8, dtype=np.float32).reshape(2, 4, 8).transpose(1, 0, 2)).all()


def test_ids_of_the_tuple_convention_are_converted_once(run, services, texts, tmp_path):
    asked = []
    run(texts, tmp_path / "out", wrap=lambda client: Wrapped(client, asked.append), layers=[2, 17], convention="tuple")
    assert all(isinstance(one, HiddenRequest) and one.layers == [1, 16] for one in asked)
    record = json.loads((tmp_path / "out" / "extract.json").read_text())
    assert record["planes"] == [1, 16] and record["requested"] == {"layers": [2, 17], "convention": "tuple"}


@pytest.mark.parametrize("died_at", [0, 1, 3])
def test_a_stopped_run_goes_on_without_losing_or_repeating_anything(run, services, texts, tmp_path, died_at):
    run(texts, tmp_path / "whole")
    services.ledger.reset()
    seen = []

    def stop(request):
        seen.append(request)
        if len(seen) > died_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(texts, tmp_path / "out", wrap=lambda client: Wrapped(client, stop))
    assert len(index_of(tmp_path / "out")) == died_at
    run(texts, tmp_path / "out")
    assert services.ledger.count("hidden") == 4  # each once, over both runs
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    assert sorted(entry["row"] for entry in index_of(tmp_path / "out")) == [0, 1, 2, 3]
    run(texts, tmp_path / "out")
    assert services.ledger.count("hidden") == 4  # nothing is left to do


def test_what_a_kill_leaves_between_two_steps_is_put_right(run, services, texts, tmp_path):
    folder = tmp_path / "out"
    run(texts, folder)
    whole, lines = content_of(folder), (folder / "index.jsonl").read_bytes().splitlines(keepends=True)
    orphan = folder / json.loads(lines[3])["path"]
    # The last file was written, its line was torn; another file was in the middle of being written.
    (folder / "index.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    (orphan.parent / f".{orphan.name}.1.part").write_bytes(b"half")
    # The list of samples was torn as well.
    samples = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "samples.jsonl").write_bytes(b"".join(samples[:2]) + samples[2][:7])
    done = run(texts, folder)
    assert done.num_finished == 4 and content_of(folder) == whole
    assert (folder / "samples.jsonl").read_bytes() == b"".join(samples)
    assert not list(folder.rglob("*.part")) and len(index_of(folder)) == 4


def test_verify_finds_a_flipped_bit_a_cut_and_a_missing_file_and_makes_them_again(run, services, texts, tmp_path):
    folder = tmp_path / "out"
    run(texts, folder)
    whole = content_of(folder)
    paths = {entry["id"]: folder / entry["path"] for entry in index_of(folder)}
    data = bytearray(paths["reference"].read_bytes())
    data[-1] ^= 1
    paths["reference"].write_bytes(data)
    paths["started"].write_bytes(paths["started"].read_bytes()[:-1])
    paths["long"].unlink()
    services.ledger.reset()
    assert run(texts, folder).damaged == () and services.ledger.count("hidden") == 0  # only when asked
    done = run(texts, folder, verify=True)
    assert sorted(done.damaged) == ["long", "reference", "started"]
    assert services.ledger.count("hidden") == 3 and content_of(folder) == whole
    assert run(texts, folder, verify=True).damaged == ()


def test_a_data_set_that_has_no_room_is_refused_before_anything_is_asked(run, services, texts, tmp_path):
    with pytest.raises(TooLargeError, match=r"--max-bytes allows 10\.0 kB"):
        run(texts, tmp_path / "out", max_bytes=10_000)
    with pytest.raises(TooLargeError, match=r"18\.5 kB are to be written, the disk has 10\.0 kB free"):
        run(texts, tmp_path / "out", free_bytes=lambda _: 10_000)
    assert services.ledger.count("hidden") == 0


def test_a_folder_holds_one_extraction(run, texts, tmp_path):
    run(texts, tmp_path / "out")
    with pytest.raises(MismatchError, match=r"planes: \[1, 16\] there, \[1\] now"):
        run(texts, tmp_path / "out", layers=[1])
    texts.write_text(texts.read_text() + '{"input_ids": [1]}\n')
    with pytest.raises(MismatchError, match="texts: "):
        run(texts, tmp_path / "out")


def test_a_sample_that_fails_leaves_the_others_and_is_tried_again(run, texts, tmp_path):
    def fail(request):
        if len(request.token_ids) == 30:
            raise InternalError("planned")

    done = run(texts, tmp_path / "out", wrap=lambda client: Wrapped(client, fail))
    assert done.num_finished == 3 and [(one.id, one.message) for one in done.failures] == [("long", "planned")]
    assert run(texts, tmp_path / "out").num_finished == 4


def test_a_disk_that_cannot_be_written_ends_the_run_with_one_line(run, texts, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "data").write_text("a file where the folder would be")
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(texts, folder)


def test_texts_without_enough_to_learn_from_are_left_out_of_training_layouts(run, texts, tmp_path):
    texts.write_text('{"id": "none", "token_ids": [3, 4]}\n{"id": "one", "prompt_ids": [3], "response_ids": [4]}\n')
    assert run(texts, tmp_path / "plain").num_samples == 2
    with pytest.raises(RequestError, match="needs 2"):
        run(texts, tmp_path / "dflash", layout="specforge-dflash")
    done = run(texts, tmp_path / "all", layout="specforge-dflash", loss="all")
    assert done.num_finished == 2 and not done.refused


def test_long_texts_are_refused_or_cut(run, texts, tmp_path):
    texts.write_text(json.dumps({"id": "x", "prompt_ids": [5] * 390, "response_ids": [6] * 20}) + "\n")
    with pytest.raises(RequestError, match="410 tokens: the service takes 400; cut texts with --max-length"):
        run(texts, tmp_path / "out")
    done = run(texts, tmp_path / "cut", max_length=395)
    assert done.num_tokens == 395 and index_of(tmp_path / "cut")[0]["num_loss_tokens"] == 5


def test_a_text_whose_answer_would_be_too_large_is_refused_before_it_is_asked_for(run, services, texts, tmp_path):
    class Small:
        def __init__(self, client):
            self.client = client

        def __getattr__(self, name):
            return getattr(self.client, name)

        def info(self):
            found = self.client.info()
            return found.model_copy(update={"limits": found.limits.model_copy(update={"max_answer_bytes": 200})})

    done = run(texts, tmp_path / "out", wrap=Small)
    # Two planes of 8 values of 2 bytes: 32 bytes a token.
    assert [(one.id, one.reason.partition(":")[0]) for one in done.refused] == [
        ("long", "30 tokens make an answer of 960 bytes")
    ]
    assert done.num_finished == 3 == services.ledger.count("hidden")


def test_conversations_are_rendered_by_the_service(run, texts, tmp_path):
    turns = [{"role": "user", "content": "hi"}]
    texts.write_text(json.dumps({"id": "x", "messages": turns}) + '\n{"id": "raw", "text": "abc"}\n')
    run(texts, tmp_path / "out")
    ids = [json.loads(line).get("token_ids") for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert ids[0][:5] == [2, *map(ord, "user")] and ids[1] == [*map(ord, "abc")]


def test_the_program_says_how_far_it_is_and_what_is_there(cli, texts, tmp_path):
    out = tmp_path / "out"
    code, said = cli(texts, "--out", out, "--layers", "1,16", "--dry-run")
    assert code == 0 and "4 samples would take" in said and not (out / "data").exists()
    code, said = cli(texts, "--out", out, "--layers", "1,16")
    assert code == 0 and f"{out}: 4 of 4 samples, 44 tokens" in said
    assert "extract: 4/4 samples" in said and "tokens/s, 0 s left" in said
    code, said = cli(texts, "--out", out, "--layers", "1,16", "--verify")
    assert code == 0 and "4 of 4 samples were finished before" in said and "verified: 0 damaged" in said
    code, said = cli(texts, "--out", tmp_path / "small", "--layers", "1", "--max-bytes", "1K")
    assert code == 2 and "--max-bytes allows 1.0 kB" in said
    texts.write_text(texts.read_text() + '{"id": "bad"}\n')
    code, said = cli(texts, "--out", tmp_path / "bad", "--layers", "1")
    assert code == 5 and "left out: bad: needs one of" in said
    for wrong in (("--layers", "a"), ("--layers", ""), ("--layers", "1", "--max-bytes", "much")):
        assert cli(texts, "--out", tmp_path / "w", *wrong)[0] == 2
    code, said = cli(texts, "--out", tmp_path / "n", "--layers", "1", "--layout", "specforge", "--final-norm")
    assert code == 2 and "the layout specforge says itself" in said
