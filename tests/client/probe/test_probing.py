"""`tauscope probe` as a user meets it: verdicts, files, exit codes, resuming."""

import json

import pytest

from tauscope_client.cli import main
from tauscope_client.exit_codes import ExitCode
from tauscope_client.references.stored import read_references


def healthy(asked):
    return 2.0 if not asked else 1.0


def shifted(asked):
    return {(): 1.0, ("taps",): 2.5 if asked.get("taps") == [2, 17, 32] else 0.5}.get(tuple(asked), 0.8)


def leaky(asked):
    return 2.5 if asked.get("context_shift") == 1 else 1.0 if not asked else 0.8


@pytest.fixture
def run(prompts_path, tmp_path, capsys):
    def call(services, *arguments, texts=prompts_path, out="probe"):
        urls = ["--target", services.target_url, "--drafter-url", services.drafter_url]
        common = ["--drafter", "probed", "--out", str(tmp_path / out), *urls]
        code = main(["probe", str(texts), *common, *arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    return call


def read(tmp_path, out="probe"):
    return json.loads((tmp_path / out / "probe.json").read_text())


def test_a_planted_fault_is_found_named_and_written_down(probed, run, tmp_path):
    with probed(shifted) as services:
        code, stdout, _ = run(services, "--max-new-tokens", "40")
    assert code == ExitCode.OK
    assert "verdict: taps look shifted by one: they should be [2, 17, 32], not [1, 16, 31]: +1." in stdout
    assert "what to do: ids of the `tuple` convention" in stdout
    content = read(tmp_path)
    assert content["verdict"]["kind"] == "found"
    assert [one["name"] for one in content["verdict"]["findings"]] == ["taps +1"]
    effects = {one["name"]: one for one in content["effects"]}
    assert effects["taps +1"]["gain"] > 1
    assert effects["taps -1"]["gain"] < 0
    assert effects["taps +1"]["conditions"] == {"taps": [2, 17, 32]}
    report = (tmp_path / "probe" / "probe.md").read_text()
    assert report.startswith("# Probe of drafter probed\n\n**Taps look shifted by one")
    ranked = [line.split(" | ")[0] for line in report.splitlines() if line.startswith("| ") and " : " in line]
    assert ranked[:2] == ["| condition", "| taps +1"]
    assert "joint p is at most 0.05" in report


def test_a_leak_is_told_as_a_leak(probed, run):
    with probed(leaky) as services:
        _, stdout, _ = run(services, "--max-new-tokens", "40")
    assert "verdict: the drafter was trained with a leak" in stdout


def test_a_healthy_drafter_gets_no_alarm_and_exit_code_zero(probed, run, tmp_path):
    with probed(healthy) as services:
        code, stdout, _ = run(services, "--max-new-tokens", "60", "--fail-on-finding")
    assert code == ExitCode.OK
    assert "verdict: nothing found" in stdout
    dependence = read(tmp_path)["dependence"]
    assert dependence["worth"] == pytest.approx(1.0, abs=0.3)
    assert len(dependence["sentences"]) == 5


def test_a_finding_can_fail_a_script(probed, run):
    with probed(leaky) as services:
        code, _, _ = run(services, "--max-new-tokens", "40", "--fail-on-finding")
    assert code == ExitCode.FINDING


def test_too_few_prompts_cannot_tell(probed, run, tmp_path):
    with probed(leaky) as services:
        code, stdout, _ = run(services, "--max-new-tokens", "20", "--prompts", "3", "--fail-on-finding")
    assert code == ExitCode.OK
    assert "verdict: cannot tell" in stdout
    assert read(tmp_path)["num_texts"] == 3


def test_states_are_computed_once_a_text_and_every_condition_is_asked_once(probed, run, tmp_path):
    with probed(healthy) as services:
        run(services, "--max-new-tokens", "10", "--prompts", "2")
        assert len({detail for name, detail in services.ledger.calls if name == "generate"}) == 2
        conditions = 1 + len(read(tmp_path)["effects"])
        assert services.ledger.count("draft") == 2 * conditions


def test_a_probe_goes_on_where_it_was_and_gives_the_same_bytes(probed, run, tmp_path):
    with probed(healthy) as services:
        run(services, "--max-new-tokens", "10", "--prompts", "4")
        first = (tmp_path / "probe" / "probe.json").read_bytes()
        kept = tmp_path / "probe" / "drafted.jsonl"
        lines = kept.read_bytes().splitlines(keepends=True)
        kept.write_bytes(b"".join(lines[:2]) + lines[2][:30])  # killed while it wrote the third
        before = services.ledger.count("draft")
        run(services, "--max-new-tokens", "10", "--prompts", "4")
        assert services.ledger.count("draft") - before == 2 * (before // 4)
        assert (tmp_path / "probe" / "probe.json").read_bytes() == first
        run(services, "--max-new-tokens", "10", "--prompts", "4")
        assert services.ledger.count("generate") == 4


def test_a_folder_of_another_drafter_is_refused_and_not_touched(probed, run, tmp_path):
    with probed(healthy) as services:
        run(services, "--max-new-tokens", "10", "--prompts", "2")
    kept = (tmp_path / "probe" / "drafted.jsonl").read_bytes()
    with probed(healthy, sha256="1" * 64) as services:
        code, _, stderr = run(services, "--max-new-tokens", "10", "--prompts", "2")
    assert code == ExitCode.REFUSED
    assert "made with another drafter" in stderr
    assert (tmp_path / "probe" / "drafted.jsonl").read_bytes() == kept


def test_frozen_answers_of_a_folder_or_a_file_are_used_as_they_are(probed, run, tmp_path):
    with probed(healthy) as services:
        run(services, "--max-new-tokens", "30", "--prompts", "4")
        generated = services.ledger.count("generate")
        frozen = tmp_path / "probe"
        run(services, texts=frozen, out="again")
        run(services, "--max-new-tokens", "5", texts=frozen / "references.jsonl", out="cut")
        assert services.ledger.count("generate") == generated
    assert read(tmp_path, "again")["effects"] == read(tmp_path)["effects"]
    longest = max(len(one.response_ids) for one in read_references(frozen / "references.jsonl"))
    assert longest > 5
    assert read(tmp_path, "cut")["num_anchors"] == 4 * 4


def test_vanished_states_are_computed_again(probed, run):
    with probed(healthy) as services:
        services.ledger.gone_after = 3
        code, _, _ = run(services, "--max-new-tokens", "10", "--prompts", "2")
    assert code == ExitCode.OK


def test_a_condition_that_the_service_refuses_is_left_out_and_said(probed, run, tmp_path):
    with probed(lambda asked: -1.0 if "state_norm" in asked else healthy(asked)) as services:
        code, stdout, _ = run(services, "--max-new-tokens", "10", "--prompts", "2")
    assert code == ExitCode.OK
    assert "not tried: states normed: " in stdout
    assert "states normed" not in {one["name"] for one in read(tmp_path)["effects"]}


def test_a_text_that_fails_is_told_and_the_others_count(probed, run, prompts_path, tmp_path):
    with probed(healthy) as services:
        run(services, "--max-new-tokens", "10", "--prompts", "4")
        first = read_references(tmp_path / "probe" / "references.jsonl")[0]
        services.ledger.fail.add(len(first.prompt_ids))
        code, _, stderr = run(services, texts=tmp_path / "probe", out="again")
    assert code == ExitCode.INCOMPLETE
    assert first.id in stderr
    assert 0 < read(tmp_path, "again")["num_texts"] < 4


@pytest.mark.parametrize(
    ("arguments", "card", "expected"),
    [
        (["--reference", "nonsense"], {}, (ExitCode.USAGE, "nonsense")),
        ([], {"taps": []}, (ExitCode.USAGE, "reads no hidden states")),
        ([], {"target_hidden_size": 4096}, (ExitCode.REFUSED, "4096")),
        (["--drafter", "nobody"], {}, (ExitCode.USAGE, "nobody")),
    ],
)
def test_what_cannot_be_probed_gets_one_clear_line(probed, run, arguments, card, expected):
    code, words = expected
    with probed(healthy, **card) as services:
        found, _, stderr = run(services, "--max-new-tokens", "5", *arguments)
    assert found == code
    assert words in stderr


def test_a_folder_without_a_run_is_refused(probed, run, tmp_path):
    (tmp_path / "empty").mkdir()
    with probed(healthy) as services:
        code, _, stderr = run(services, texts=tmp_path / "empty")
    assert code == ExitCode.USAGE
    assert "no run" in stderr
