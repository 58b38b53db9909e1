"""The relay between two real sshd instances: interrupted, killed, refused, and equal at the end."""

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kit.sshd import MISSING, SshHost, is_available, ssh_hosts
from tauscope_client.cli import main
from tauscope_client.ship.content import Content
from tauscope_client.ship.hosts import BrokenStreamError, Host, SshOptions
from tauscope_client.ship.location import parse_location
from tauscope_client.ship.meter import SilentMeter
from tauscope_client.ship.transfer import PART_SUFFIX, Transfer, file_facts
from tauscope_wire.errors import CheckpointError, MismatchError, UnreachableError

pytestmark = pytest.mark.skipif(not is_available(), reason=MISSING)

MIB = 1 << 20
Network = tuple[Path, dict[str, SshHost]]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), ("box-a", "box-b")) as (config, hosts):
        yield config, {host.alias: host for host in hosts}


def random_file(path: Path, nbytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(nbytes).randbytes(nbytes))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Watcher(SilentMeter):
    """Counts bytes and acts once at given points."""

    def __init__(self, acts: dict[int, Callable[[], object]] | None = None) -> None:
        self.acts = dict(acts or {})
        self.bytes_moved = 0
        self.begun: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def begin(self, name: str, total: int, done: int) -> None:
        self.begun.append((total, done))

    def moved(self, nbytes: int) -> None:
        self.bytes_moved += nbytes
        for point in [p for p in self.acts if p <= self.bytes_moved]:
            self.acts.pop(point)()

    def note(self, text: str) -> None:
        self.notes.append(text)


def relay(network: Network, source: str, destination: str, meter: Watcher, **options: bool) -> bool:
    ends = parse_location(source), parse_location(destination)
    ssh = SshOptions(config=network[0])
    with Host(ends[0], ssh) as begin, Host(ends[1], ssh) as end:
        facts = file_facts(begin, ends[0].path)
        assert facts is not None
        transfer = Transfer(begin, end, meter=meter, wait=lambda _: None, **options)
        return transfer.ship(ends[0], ends[1], Content.whole(facts.nbytes), facts)


@pytest.mark.parametrize(
    "cut", [pytest.param("box-a", marks=pytest.mark.slow), pytest.param("box-b", marks=pytest.mark.slow), "both"]
)
def test_a_transfer_whose_connections_break_three_times_arrives_equal(
    network: Network, tmp_path: Path, cut: str
) -> None:
    source = random_file(tmp_path / "a" / "step 20k's.pt", 24 * MIB + 12345)
    goal = tmp_path / "b" / "step.pt"
    goal.parent.mkdir()
    hosts = list(network[1].values()) if cut == "both" else [network[1][cut]]
    cuts: list[int] = []

    def break_line() -> None:
        cuts.append(sum(host.cut_connections() for host in hosts))

    meter = Watcher({point * MIB: break_line for point in (5, 12, 20)})
    assert relay(network, f"box-a:{source}", f"box-b:{goal}", meter)
    assert sha256(goal) == sha256(source)
    assert len(cuts) == 3
    assert all(cuts)
    assert sum("interrupted" in note for note in meter.notes) >= 3
    assert [done > 0 for _, done in meter.begun] == [False] + [True] * (len(meter.begun) - 1)
    assert meter.bytes_moved < 2 * source.stat().st_size  # went on, did not start over
    assert not Path(f"{goal}{PART_SUFFIX}").exists()


def test_what_is_there_and_equal_is_not_shipped_again(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", 3 * MIB)
    for expected in (True, False):
        meter = Watcher()
        assert relay(network, f"box-a:{source}", f"box-b:{tmp_path}/b.bin", meter) is expected
    assert meter.bytes_moved == 0


def test_another_file_at_the_destination_is_kept_unless_told_otherwise(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", MIB)
    goal = random_file(tmp_path / "b.bin", MIB + 1)
    with pytest.raises(MismatchError, match="--overwrite"):
        relay(network, f"box-a:{source}", f"box-b:{goal}", Watcher())
    assert relay(network, f"box-a:{source}", f"box-b:{goal}", Watcher(), overwrite=True)
    assert sha256(goal) == sha256(source)


def test_a_part_of_another_file_is_noticed_and_not_continued(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", 5 * MIB)
    random_file(tmp_path / f"b.bin{PART_SUFFIX}", 3 * MIB)
    meter = Watcher()
    relay(network, f"box-a:{source}", f"box-b:{tmp_path}/b.bin", meter)
    assert sha256(tmp_path / "b.bin") == sha256(source)
    assert any("starting over" in note for note in meter.notes)


def test_a_bit_that_flips_at_the_destination_is_found_and_nothing_gets_the_name(
    network: Network, tmp_path: Path
) -> None:
    source = random_file(tmp_path / "a.bin", 4 * MIB)
    part = tmp_path / f"b.bin{PART_SUFFIX}"

    def flip() -> None:
        with part.open("r+b") as file:
            file.write(bytes([source.read_bytes()[0] ^ 1]))

    with pytest.raises(CheckpointError, match="checksums of both ends differ"):
        relay(network, f"box-a:{source}", f"box-b:{tmp_path}/b.bin", Watcher({4 * MIB: flip}))
    assert not (tmp_path / "b.bin").exists()
    assert relay(network, f"box-a:{source}", f"box-b:{tmp_path}/b.bin", Watcher())


def test_a_source_that_changes_meanwhile_is_refused(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", 4 * MIB)

    def grow() -> None:
        with source.open("ab") as file:
            file.write(b"more")

    with pytest.raises(CheckpointError, match="changed while it was shipped"):
        relay(network, f"box-a:{source}", f"box-b:{tmp_path}/b.bin", Watcher({4 * MIB: grow}))
    assert not (tmp_path / "b.bin").exists()


def test_a_destination_that_cannot_be_written_ends_in_its_own_words(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", 1000)
    with pytest.raises(UnreachableError, match="no such folder"):
        relay(network, f"box-a:{source}", f"box-b:{tmp_path}/missing/b.bin", Watcher())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_in_its_own_words() -> None:
    location = parse_location("/dev/full")
    with (
        Host(location, SshOptions()) as host,
        pytest.raises(BrokenStreamError, match="No space left on device"),
        host.writing("exec dd of=/dev/full bs=1048576") as sink,
    ):
        for _ in range(64):
            sink.write(b"x" * MIB)


def run_command(network: Network, *arguments: str) -> int:
    return main(["ship", *arguments, "--ssh-config", str(network[0])])


@pytest.mark.slow
def test_the_command_killed_three_times_goes_on_each_time_and_ends_equal(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.pt", 48 * MIB)
    goal = tmp_path / "b.pt"
    part = Path(f"{goal}{PART_SUFFIX}")
    arguments = ["ship", f"box-a:{source}", f"box-b:{goal}", "--ssh-config", str(network[0])]
    program = f"import sys; from tauscope_client.cli import main; sys.exit(main({arguments!r}))"
    reached = 0
    for round_number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stderr is not None
        goal_bytes = (round_number + 1) * 8 * MIB
        while process.poll() is None and (not part.exists() or part.stat().st_size < goal_bytes):
            os.sched_yield()
        assert process.poll() is None, process.stderr.read().decode()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
        for host in network[1].values():
            host.cut_connections()  # the ssh master of the killed command lives in a session of its own
        assert part.stat().st_size >= reached
        reached = part.stat().st_size
        assert not goal.exists()
    assert run_command(network, f"box-a:{source}", f"box-b:{goal}") == 0
    assert sha256(goal) == sha256(source)


def test_a_folder_with_links_and_odd_names_is_shipped_whole(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    names = ("config.json", "sub dir/model-00001.safetensors", 'it\'s "odd" $HOME `x`.txt', "-rf", "\u00e9.bin")
    for index, name in enumerate(names):
        random_file(folder / name, 1000 * index)
    (folder / "link.bin").symlink_to(folder / "sub dir" / "model-00001.safetensors")
    assert run_command(network, f"box-a:{folder}", f"box-b:{tmp_path}/b/deep") == 0
    assert "6 files, 11000 bytes, checksums of both ends agree" in capsys.readouterr().out
    for name in (*names, "link.bin"):
        assert (tmp_path / "b" / "deep" / name).read_bytes() == (folder / name).read_bytes()


def test_weights_only_ships_what_torch_loads_and_says_what_it_left_out(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"fc.weight": torch.randn(300, 300), "norm.weight": torch.ones(300)}
    optimizer = {"state": {0: torch.randn(2, 300, 300)}, "param_groups": []}
    (tmp_path / "a").mkdir()
    torch.save(
        {"model_state_dict": weights, "optimizer_state_dict": optimizer, "step": 7}, tmp_path / "a" / "checkpoint.pt"
    )
    torch.save({"x": 1}, tmp_path / "a" / "optimizer.pt")
    (tmp_path / "a" / "config.json").write_text("{}")
    assert run_command(network, f"box-a:{tmp_path}/a", f"box-b:{tmp_path}/b", "--weights-only") == 0
    said = capsys.readouterr().err
    assert "optimizer.pt: left out" in said
    assert "checkpoint.pt: 2 model tensors" in said
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["checkpoint.pt", "config.json"]
    shipped = torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)
    assert set(shipped) == {"model_state_dict", "step"}
    assert all(torch.equal(shipped["model_state_dict"][name], tensor) for name, tensor in weights.items())
    assert (tmp_path / "b" / "checkpoint.pt").stat().st_size < 500_000


def test_local_paths_work_on_either_side_and_an_empty_file_arrives(network: Network, tmp_path: Path) -> None:
    source = random_file(tmp_path / "a.bin", 2 * MIB)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    assert run_command(network, str(source), f"box-b:{tmp_path}/folder") == 0
    assert run_command(network, f"box-a:{tmp_path}/folder/a.bin", str(tmp_path / "c.bin")) == 0
    assert run_command(network, str(tmp_path / "empty"), str(tmp_path / "empty-too")) == 0
    assert sha256(tmp_path / "c.bin") == sha256(source)
    assert (tmp_path / "empty-too").read_bytes() == b""


@pytest.mark.parametrize(
    ("ends", "code", "message"),
    [
        (("box-a:/no/such/file", "/tmp/x"), 2, "no such file or folder on box-a"),
        (("no-such-host.invalid:/a", "/tmp/x"), 3, "no-such-host.invalid"),
        (("/a", "/a"), 2, "source and destination are the same"),
        (("box-a:", "/tmp/x"), 2, "the path after the host is missing"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    network: Network, capsys: pytest.CaptureFixture[str], ends: tuple[str, str], code: int, message: str
) -> None:
    assert run_command(network, *ends) == code
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
