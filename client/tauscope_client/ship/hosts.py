"""Running shell scripts on an end of a transfer: on this machine, or over ssh with one log-in for all of them."""

import contextlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tauscope_client.ship.location import Location
from tauscope_wire.errors import UnreachableError

__all__ = ["BrokenStreamError", "Host", "Sink", "SshOptions"]

SSH_OPTIONS = (
    "-T",
    "-oServerAliveInterval=15",  # with the count: a dead line is noticed within a minute
    "-oServerAliveCountMax=4",
    "-oConnectTimeout=20",
)
KILL_WAIT_S = 10.0


class BrokenStreamError(Exception):
    """A script ended early or with an error; the message is the last line that it said."""


class _BrokenSinkError(BrokenStreamError):
    """A script stopped reading its input."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__("the pipe broke")
        self.pipe = pipe


class Sink:
    """The input of a script that runs."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def write(self, piece: bytes) -> None:
        """Hand over all of `piece`.

        Raises:
            BrokenStreamError: the script does not read any more.
        """
        view = memoryview(piece)
        try:
            while view:
                view = view[self._pipe.write(view) :]  # unbuffered: may take less than all
        except OSError:
            raise _BrokenSinkError(self._pipe) from None


class SshOptions:
    """How `ssh` is called.

    Args:
        config: in place of the user's `~/.ssh/config`.
        program: the command.
    """

    def __init__(self, *, config: Path | None = None, program: str = "ssh") -> None:
        self.arguments = [program, *SSH_OPTIONS, *([] if config is None else ["-F", str(config)])]


class Host:
    """One end. Use as a context manager; it keeps one ssh connection that all scripts share.

    Args:
        location: names the host; its path is not used.
        options: how ssh is called.
    """

    def __init__(self, location: Location, options: SshOptions) -> None:
        self._host, self._port = location.host, location.port
        self._options = options
        self._sockets: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        """Connect."""
        if self._host is not None:
            self._sockets = tempfile.TemporaryDirectory(prefix="tau-")  # short: socket paths have about 100 bytes
            try:
                self.connect()
            except BaseException:
                self._sockets.cleanup()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        if self._sockets is not None:
            self._control("exit")
            self._sockets.cleanup()

    def __str__(self) -> str:
        return self._host or "this machine"

    def connect(self) -> None:
        """Log in, unless that still holds. ssh asks for passwords on the terminal itself.

        Raises:
            UnreachableError: ssh could not connect; with its own words.
        """
        if self._host is None or self._control("check") == 0:
            return
        with tempfile.TemporaryFile() as said:
            master = [*self._ssh(), "-f", "-N", "-M", "--", self._host]
            done = subprocess.run(  # noqa: S603 - no shell here; the host was checked when it was parsed
                master, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False
            )
            if done.returncode:
                raise UnreachableError(f"{self}: {_last_line(said) or 'ssh could not connect'}")

    def run(self, script: str) -> bytes:
        """Output of a script.

        Raises:
            BrokenStreamError: it failed.
        """
        with self.reading(script) as output:
            return output.read()

    @contextlib.contextmanager
    def reading(self, script: str) -> Iterator[IO[bytes]]:
        """The output of a script, while it runs.

        Raises:
            BrokenStreamError: it failed (found when the block ends).
        """
        with tempfile.TemporaryFile() as text:  # through standard input: a script of many ranges is no argument
            text.write(script.encode())
            text.seek(0)
            with self._process("exec sh -s", stdout=subprocess.PIPE, stdin=text) as process:
                assert process.stdout is not None
                yield process.stdout

    @contextlib.contextmanager
    def writing(self, script: str) -> Iterator["Sink"]:
        """The input of a script; the block ends when the script has taken all of it.

        Raises:
            BrokenStreamError: it failed.
        """
        with self._process(script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            yield Sink(process.stdin)
            process.stdin.close()

    @contextlib.contextmanager
    def _process(self, script: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(self._command(script), stderr=said, bufsize=0, **pipes)  # noqa: S603 - as above
            try:
                yield process
                if process.wait():
                    raise BrokenStreamError(f"{self}: {_last_line(said) or f'exit code {process.returncode}'}")
            except _BrokenSinkError as error:
                if error.pipe is not process.stdin:
                    raise
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_WAIT_S)  # it ended by itself; what it said is the better message
                raise BrokenStreamError(f"{self}: {_last_line(said) or 'the pipe broke'}") from None
            finally:
                process.kill()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        with contextlib.suppress(OSError):
                            pipe.close()
                process.wait()

    def _command(self, script: str) -> Sequence[str]:
        if self._host is None:
            return ["sh", "-c", script]
        # one quoted argument for `sh`, so that the log-in shell of the account (fish, csh) does not matter
        return [*self._ssh(), "-oControlMaster=no", "--", self._host, f"exec sh -c {shlex.quote(script)}"]

    def _ssh(self) -> list[str]:
        assert self._sockets is not None
        port = [] if self._port is None else ["-p", str(self._port)]
        return [*self._options.arguments, f"-oControlPath={self._sockets.name}/%C", *port]

    def _control(self, what: str) -> int:
        assert self._host is not None
        command = [*self._ssh(), "-O", what, "--", self._host]
        return subprocess.run(  # noqa: S603 - as above
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read()[-4096:].decode(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if "records in" not in line and "records out" not in line and " copied" not in line]
    return lines[-1][:300] if lines else ""
