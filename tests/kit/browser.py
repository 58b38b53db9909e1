"""A headless Chromium for tests of pages: serves a folder and runs a script against a page in it."""

import html
import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
TIMEOUT_S = 120

# The page is looked at from outside, through a frame of the same origin: its own policy allows no foreign script.
DRIVER = """<!doctype html><meta charset="utf-8"><body>
<iframe id="frame" src="PAGE" width="WIDTH" height="900"></iframe>
<pre id="seen"></pre><script>
addEventListener("load", () => {
  const page = document.getElementById("frame").contentDocument;
  let seen;
  try { seen = ((page) => { SCRIPT })(page); } catch (error) { seen = { error: String(error) }; }
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script></body>"""


def chromium() -> str | None:
    """Path of a Chromium, None when there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            asked.append(self.path)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.daemon_threads = False  # closing waits for answers under way, so no socket outlives the test
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def look(page: Path, script: str, *, width: int = 1280, hash_part: str = "") -> tuple[Any, list[str]]:
    """Run `script` (a function body that gets `page`, the document) and return its JSON, and the requests made."""
    binary = chromium()
    assert binary is not None
    driver = page.with_name("driver.html")
    driver.write_text(
        DRIVER.replace("PAGE", page.name + hash_part).replace("WIDTH", str(width)).replace("SCRIPT", script)
    )
    with _serving(page.parent) as (url, asked), tempfile.TemporaryDirectory() as profile:
        command = [binary, *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom"]
        done = subprocess.run(
            [*command, f"{url}/driver.html"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.S)
    assert found is not None, done.stderr
    return json.loads(html.unescape(found.group(1))), asked


def print_pdf(page: Path) -> bytes:
    """The page as Chromium prints it."""
    binary = chromium()
    assert binary is not None
    out = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        command = [binary, *FLAGS, f"--user-data-dir={profile}", "--no-pdf-header-footer", f"--print-to-pdf={out}"]
        subprocess.run([*command, page.as_uri()], capture_output=True, check=True, timeout=TIMEOUT_S)
    return out.read_bytes()
