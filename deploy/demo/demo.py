"""The demo: both services on free loopback ports with the bundled models, one evaluation, a report; then all stops.

Usage: python deploy/demo/demo.py [--out DIR] [--keep]. Every command that it runs is printed, so that it can be typed
by hand. The bundled target is a hybrid (gated delta) model and this is a CPU, so the target service is told by name
that the slow reference kernels are wanted: --allow-reference-kernels. On a GPU you would leave that flag out.
"""

import argparse
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

DEMO = Path(__file__).resolve().parent
MODELS = DEMO / "models"
START_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0
POLL_S = 0.2


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def script(name: str) -> str:
    """Path of a console script of the environment that runs this file."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed in {sys.prefix}: run `make setup`")
    return found


def show(arguments: list[str]) -> None:
    """Print a command as one would type it."""
    words = [Path(arguments[0]).name, *(a.removeprefix(f"{Path.cwd()}/") for a in arguments[1:])]
    print("$ " + " ".join(map(shlex.quote, words)), flush=True)


@contextmanager
def service(name: str, arguments: list[str], *, url: str, log_path: Path) -> Iterator[str]:
    """Run a service until the block ends; gives its address once it is ready."""
    command = [script(name), *arguments]
    show(command)
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_ready(name, process, url=url, log_path=log_path)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(name: str, process: "subprocess.Popen[bytes]", *, url: str, log_path: Path) -> None:
    """Poll `/readyz`; on failure show the end of the service's log and stop the demo."""
    started = time.monotonic()
    while time.monotonic() - started < START_LIMIT_S:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                print(f"  {name} is ready after {time.monotonic() - started:.0f} s", flush=True)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    tail = log_path.read_text(errors="replace").splitlines()[-20:]
    sys.exit("\n".join([f"{name} did not become ready (exit code {process.poll()}); the end of its log:", *tail]))


def services(logs: Path) -> list[AbstractContextManager[str]]:
    """Both services with the bundled models; entering one starts it and gives its address.

    Args:
        logs: folder for their logs.
    """
    ports = free_port(), free_port()
    target_url, drafter_url = (f"http://127.0.0.1:{port}" for port in ports)
    target = [
        *("--model", str(MODELS / "target")),
        *("--port", str(ports[0])),
        *("--device", "cpu", "--allow-reference-kernels"),
    ]
    drafter = [
        *("--target-url", target_url),
        *("--target-model", str(MODELS / "target")),
        *("--drafter", f"trained={MODELS / 'drafter-a'}"),
        *("--drafter", f"early={MODELS / 'drafter-b' / 'checkpoint.pt'}"),
        *("--port", str(ports[1])),
        *("--device", "cpu"),
    ]
    return [
        service("tauscope-target", target, url=target_url, log_path=logs / "target.log"),
        service("tauscope-drafter", drafter, url=drafter_url, log_path=logs / "drafter.log"),
    ]


def main() -> int:
    """Run the demo; the exit code is that of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="resume an existing run folder instead of starting anew")
    options = parser.parse_args()
    if options.out.exists() and not options.keep:
        shutil.rmtree(options.out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="tauscope-demo-") as logs:
        print("Starting both services on this machine's CPU", flush=True)
        target_url, drafter_url = (stack.enter_context(running) for running in services(Path(logs)))
        command = [
            script("tauscope"),
            *("eval", str(DEMO / "prompts.jsonl")),
            *("--reference", f"file={DEMO / 'references.jsonl'}"),
            *("--target", target_url),
            *("--drafter-url", drafter_url),
            *("--drafter", "trained"),
            *("--drafter", "early"),
            *("--out", str(options.out)),
        ]
        show(command)
        code = subprocess.run(command, check=False).returncode
    print("Stopped both services", flush=True)
    if code == 0:
        command = [script("tauscope"), "report", str(options.out)]
        show(command)
        code = subprocess.run(command, check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
