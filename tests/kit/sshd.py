"""Two hosts on this machine: sshd instances of the current user on free ports of loopback, with keys of their own."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

MISSING = "needs sshd and ssh (Debian: apt-get install openssh-server)"


def is_available() -> bool:
    """Whether sshd can be started here."""
    return SSHD is not None and shutil.which("ssh") is not None


@dataclass(frozen=True)
class SshHost:
    """One sshd.

    Attributes:
        alias: its name in the ssh configuration.
        process: the listening process; its children are the sessions.
    """

    alias: str
    process: "subprocess.Popen[bytes]"

    def cut_connections(self) -> int:
        """Kill every session, as a line that breaks does; new ones are accepted. Gives their number."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        pids = [int(pid) for pid in children.stdout.split()]
        for pid in pids:
            for child in subprocess.run(
                ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
            ).stdout.split():
                _kill(int(child))
            _kill(pid)
        return len(pids)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def ssh_hosts(folder: Path, aliases: tuple[str, ...]) -> Iterator[tuple[Path, list[SshHost]]]:
    """Start an sshd for each alias.

    Yields:
        The ssh configuration that knows them, and the hosts.
    """
    assert SSHD is not None
    key = folder / "user_key"
    _make_key(key)
    lines, hosts = [], []
    try:
        for alias in aliases:
            port = _free_port()
            host_key = folder / f"{alias}_host_key"
            _make_key(host_key)
            config = folder / f"{alias}_sshd"
            config.write_text(
                f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
                f"AuthorizedKeysFile {key}.pub\nPasswordAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
                "MaxStartups 100\n"
            )
            if os.geteuid() == 0:
                Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root wants it for privilege separation
            process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
            hosts.append(SshHost(alias, process))
            lines.append(
                f"Host {alias}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
                f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
            )
            _wait_for(port, process)
        config_file = folder / "ssh_config"
        config_file.write_text("".join(lines))
        yield config_file, hosts
    finally:
        for host in hosts:
            host.cut_connections()
            host.process.kill()
            host.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except ConnectionRefusedError:
            continue
        return
    raise RuntimeError("sshd did not start")
