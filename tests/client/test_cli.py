"""The program as a user meets it: tables, files, exit codes, and one clear line for everything that goes wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from kit.client import table_services
from kit.engines import Talk, sglang_app
from kit.serve import running
from tauscope_client.cli import main
from tauscope_client.exit_codes import ExitCode

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def cli(services, capsys):
    """Run the program against the two services; gives exit code, stdout and stderr."""

    def call(*arguments, addresses=True):
        urls = []
        if addresses:
            urls = ["--target", services.target_url]
            if arguments[0] in {"eval", "doctor"}:
                urls += ["--drafter-url", services.drafter_url]
        code = main([*arguments, *urls])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    return call


def test_eval_prints_the_comparison_with_definitions_and_leaves_a_run_folder(cli, prompts_path, tmp_path):
    out = tmp_path / "run"
    code, stdout, stderr = cli(
        "eval", str(prompts_path), "-d", "good", "-d", "bad", "--max-new-tokens", "40", "--out", str(out)
    )
    assert code == ExitCode.OK
    results = json.loads((out / "results.json").read_text())
    for name in ("good", "bad"):
        assert f"{results['drafters'][name]['overall']['values']['tau']:.3f}" in stdout
    for words in ("top-4 streak", "top-8 streak", "agreement", "tau, train (1 prompts)", "by block position", str(out)):
        assert words in stdout
    assert "tau: mean emitted tokens a round over the serving walk" in stdout
    assert "references: 3" in stderr and "drafts: 6/6" in stderr
    assert "\x1b" not in stdout + stderr
    summary = (out / "summary.md").read_text()
    assert f"| tau | {results['drafters']['good']['overall']['values']['tau']:.3f} (" in summary
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["settings_in_force"]["max_new_tokens"] == 40
    assert manifest["target"]["numerics"]["torch"] == "0"
    assert not {"key", "reference_key"} & set(manifest["settings_passed"])


def test_eval_takes_references_from_sglang_and_then_from_its_frozen_file(cli, services, prompts_path, tmp_path):
    talk, frozen = Talk(), tmp_path / "refs.jsonl"
    with running(sglang_app(services.model, talk)) as url:
        code, stdout, _ = cli(
            "references",
            str(prompts_path),
            "--reference",
            f"sglang={url}",
            "--max-new-tokens",
            "30",
            "--out",
            str(frozen),
        )
    assert code == ExitCode.OK and "3 references" in stdout and "2 answers were asked for twice more" in stdout
    assert json.loads(frozen.read_text().splitlines()[0])["engine"]["version"] == "0.5.23"
    code, _, _ = cli("eval", str(prompts_path), "-d", "good", "-r", f"file={frozen}", "-o", str(tmp_path / "run"))
    assert code == ExitCode.OK
    assert services.ledger.count("generate") == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings_in_force"]["max_new_tokens"] == 30 and manifest["reference"]["stored"] is True


def test_references_are_continued_after_a_kill(cli, services, prompts_path, tmp_path):
    frozen = tmp_path / "refs.jsonl"
    arguments = ("references", str(prompts_path), "--max-new-tokens", "30", "--out", str(frozen))
    cli(*arguments)
    whole = frozen.read_bytes()
    frozen.write_bytes(whole[: len(whole) // 2])
    services.ledger.calls.clear()
    assert cli(*arguments)[0] == ExitCode.OK
    assert frozen.read_bytes() == whole
    assert 0 < services.ledger.count("generate") < 3
    code, _, stderr = cli("references", str(prompts_path), "--max-new-tokens", "31", "--out", str(frozen))
    assert code == ExitCode.REFUSED and "was made with max_new_tokens 30" in stderr


def test_a_stored_reference_for_another_rendering_is_refused(cli, prompts_path, tmp_path):
    frozen = tmp_path / "refs.jsonl"
    cli("references", str(prompts_path), "--max-new-tokens", "30", "--out", str(frozen))
    code, _, stderr = cli(
        "eval", str(prompts_path), "-d", "good", "-r", f"file={frozen}", "-o", str(tmp_path / "run"),
        "--template-kwargs", '{"enable_thinking": true}',
    )  # fmt: skip
    assert code == ExitCode.REFUSED and "another chat template, template kwargs, or prompt" in stderr


FAILURES = {
    "no prompts file": (["eval", "none.jsonl", "-d", "good"], 2, "none.jsonl: no such file"),
    "unknown source": (["eval", "PROMPTS", "-d", "good", "-r", "vllm"], 2, "expected target, sglang=URL"),
    "no reference file": (["eval", "PROMPTS", "-d", "good", "-r", "file=none"], 2, "none: cannot be read"),
    "no SGLang": (["eval", "PROMPTS", "-d", "good", "-r", f"sglang={NOBODY}"], 3, "no reference server answers"),
    "unknown drafter": (["eval", "PROMPTS", "-d", "ugly"], 2, "loaded are: bad, good"),
    "kwargs": (["eval", "PROMPTS", "-d", "good", "--template-kwargs", "{"], 2, "--template-kwargs '{': not JSON"),
    "layer 70 of 64": (["hidden", "-l", "70", "-o", "x.npz", "--user", "hi"], 2, "layers[0]=70: the model has 64"),
    "empty prompt": (["hidden", "-l", "1", "-o", "x.npz", "--user", " "], 2, "the prompt is empty"),
    "file name": (["hidden", "-l", "1", "-o", "x.bin", "--user", "hi"], 2, "must end in .safetensors or .npz"),
    "layer names": (["hidden", "-l", "one", "-o", "x.npz", "--user", "hi"], 2, "expected integers"),
    "no prompt": (["hidden", "-l", "1", "-o", "x.npz"], 2, "give exactly one of"),
    "too long": (["hidden", "-l", "1", "-o", "x.npz", "--text", "x" * 401], 2, "401 tokens: at most 400"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_is_one_clear_message_and_its_own_exit_code(cli, prompts_path, tmp_path, name):
    line, code, words = FAILURES[name]
    arguments = [str(prompts_path) if part == "PROMPTS" else part for part in line]
    if line[0] == "eval":
        arguments += ["-o", str(tmp_path / "run")]
    found, _, stderr = cli(*arguments)
    assert (found, words in stderr) == (code, True), stderr
    assert len(stderr.strip().splitlines()) == 1


def test_malformed_lines_are_listed(cli, prompts_path):
    prompts_path.write_text('{"id": 1}\n{"id": 2, "text": ""}\n')
    code, _, stderr = cli("eval", str(prompts_path), "-d", "good")
    assert code == ExitCode.USAGE
    assert f"{prompts_path}:1: no prompt in it" in stderr and f"{prompts_path}:2: the prompt is empty" in stderr


def test_services_that_do_not_run_and_swapped_addresses_are_told(services, prompts_path, tmp_path, capsys):
    rest = [str(prompts_path), "-d", "good", "-o", str(tmp_path / "run")]
    assert main(["eval", *rest, "--target", NOBODY, "--drafter-url", services.drafter_url]) == ExitCode.UNREACHABLE
    assert "ssh -N -L" in capsys.readouterr().err
    swapped = ["--target", services.drafter_url, "--drafter-url", services.target_url]
    assert main(["eval", *rest, *swapped]) == ExitCode.REFUSED
    assert "the two addresses are swapped" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_fails_makes_the_run_incomplete(cli, services, prompts_path, tmp_path):
    with prompts_path.open("a") as file:
        file.write(json.dumps({"id": "long", "text": "x" * 400}) + "\n")
    code, stdout, _ = cli("eval", str(prompts_path), "-d", "good", "-o", str(tmp_path / "run"))
    assert code == ExitCode.INCOMPLETE
    assert "not evaluated: long (reference): prompt 'long' has 400 tokens" in stdout


def test_hidden_writes_safetensors_and_npz_with_what_they_are(cli, tmp_path):
    common = ("hidden", "--token-ids", "65,66,67", "--layers", "16,1")
    code, stdout, _ = cli(*common, "--out", str(tmp_path / "x.safetensors"), "--dtype", "float32")
    assert code == ExitCode.OK and "planes 16, 1 (canonical ids), 3 positions of 3 tokens" in stdout
    expected = np.arange(1, 49, dtype=np.float32).reshape(2, 3, 8)
    with safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert np.array_equal(file.get_tensor("layer.16"), expected[0])
        assert np.array_equal(file.get_tensor("layer.1"), expected[1])
        assert file.get_tensor("token_ids").tolist() == [65, 66, 67]
        assert json.loads(file.metadata()["planes"]) == [16, 1] and file.metadata()["model"] == "table-model"
    cli(*common, "--out", str(tmp_path / "x.npz"), "--dtype", "float32")
    with np.load(tmp_path / "x.npz") as file:
        assert np.array_equal(file["layer.1"], expected[1])
        assert json.loads(file["facts_json"].tobytes())["dtype"] == "float32"


def test_doctor_says_that_all_is_well(cli):
    code, stdout, _ = cli("doctor")
    assert code == ExitCode.OK
    for words in (
        "64 decoder layers, ids 0..63 (tuple convention: 1..64)",
        "self-test argmax: passed",
        "every drafter fits",
        "all well",
    ):
        assert words in stdout


def test_doctor_names_what_does_not_fit_and_what_to_do(capsys):
    with table_services(drafter={"hidden_size": 16}, target={"reference_kernels": True, "version": "0.0.9"}) as both:
        code = main(["doctor", "--target", both.target_url, "--drafter-url", both.drafter_url])
    stdout = capsys.readouterr().out
    assert code == ExitCode.REFUSED
    assert "problem drafter 'good' reads hidden states of size 16" in stdout
    assert "version 0.0.9, this client" in stdout and "reference kernels" in stdout
    with table_services(drafter={"salts": {}}) as both:
        code = main(["doctor", "--target", both.target_url, "--drafter-url", NOBODY])
    stdout = capsys.readouterr().out
    assert code == ExitCode.UNREACHABLE
    assert "ssh -N -L 30010:127.0.0.1:30010 -L 30020:127.0.0.1:30020 user@box" in stdout


def test_the_help_documents_the_exit_codes_and_loads_no_torch():
    script = (
        "import sys\nfrom tauscope_client.cli import main\ncode = main(['eval', '--help'])\n"
        "loaded = {'torch', 'transformers', 'fastapi', 'tauscope_serving'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Exit codes: 0 done" in done.stdout and "TAUSCOPE_TARGET_URL" in done.stdout


def test_without_names_every_loaded_drafter_is_evaluated(cli, prompts_path, tmp_path):
    code, _, _ = cli("eval", str(prompts_path), "-o", str(tmp_path / "run"), "--max-new-tokens", "20")
    assert code == ExitCode.OK
    assert list(json.loads((tmp_path / "run" / "results.json").read_text())["drafters"]) == ["good", "bad"]


def test_a_password_in_an_address_is_refused_and_not_repeated(cli, prompts_path, tmp_path):
    code, _, stderr = cli(
        "eval", str(prompts_path), "-r", "sglang=http://me:secret@127.0.0.1:9", "-o", str(tmp_path / "run")
    )
    assert code == ExitCode.USAGE and "--reference-key" in stderr and "secret" not in stderr


def test_speed_is_an_estimate_from_tau_and_given_costs(cli, prompts_path, tmp_path):
    out = str(tmp_path / "run")
    cli("eval", str(prompts_path), "-d", "good", "-o", out, "--max-new-tokens", "40")
    tau = json.loads((tmp_path / "run" / "results.json").read_text())["drafters"]["good"]["overall"]["values"]["tau"]
    code, stdout, _ = cli("speed", out, "--target-ms", "20", "--draft-ms", "5", addresses=False)
    assert code == ExitCode.OK and f"{tau / 1.25:.2f}" in stdout and "1.25" in stdout and "an estimate" in stdout
    code, _, stderr = cli("speed", out, "--target-ms", "0", "--draft-ms", "5", addresses=False)
    assert code == ExitCode.USAGE and "target_cost_ms=0" in stderr


def test_a_server_that_dies_half_way_says_how_to_go_on(cli, services, prompts_path, tmp_path):
    talk, out = Talk(), tmp_path / "run"
    with running(sglang_app(services.model, talk)) as url:
        line = ["eval", str(prompts_path), "-d", "good", "-r", f"sglang={url}", "-o", str(out)]
        line += ["--max-new-tokens", "20"]
        assert cli(*line, "--check-references", "0")[0] == ExitCode.OK
    references = out / "references.jsonl"
    references.write_text("".join(references.read_text().splitlines(keepends=True)[:1]))
    code, _, stderr = cli(*line)
    assert code == ExitCode.UNREACHABLE
    assert "no reference server answers" in stderr and f"go on with --out {out}" in stderr
