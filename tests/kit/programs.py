"""A service as a process of its own, which a test may kill and start again at the same address."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


class Program:
    """A service as a process of its own.

    Args:
        name: console script.
        arguments: its options; the port is added and stays the same over restarts.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        program = Path(sys.executable).with_name(name)
        self._command = [str(program), *arguments, "--device", "cpu", "--port", str(port), "--log-level", "warning"]
        self._environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=self._environment
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "is ready at" in line:
                self._emptying = threading.Thread(target=self.process.stderr.read)  # a full pipe would stop the service
                self._emptying.start()
                return
        raise RuntimeError("".join(said))

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)
        self._emptying.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
