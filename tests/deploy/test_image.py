"""The Dockerfile, built for real without a daemon: the image runs as nobody, and its target serves the bundled model.

Needs buildah and, because no registry can be reached from everywhere, a local image with Python 3.11 or later:
TAUSCOPE_PYTHON_IMAGE names it; debootstrap makes one of Debian's packages python3 and python3-venv. Other variables:
TAUSCOPE_IMAGE_TORCH, the build of torch; TAUSCOPE_BUILDAH_OPTIONS, further options of `buildah bud`, such as volumes
with a certificate or a folder of wheels.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = os.environ.get("TAUSCOPE_PYTHON_IMAGE", "")
IMAGE = "localhost/tauscope-under-test"
PORT = 30_987

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah"),
    pytest.mark.skipif(not BASE, reason="TAUSCOPE_PYTHON_IMAGE names no local image with Python"),
]


def buildah(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    environment = dict(os.environ) | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 or not check, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    options = shlex.split(os.environ.get("TAUSCOPE_BUILDAH_OPTIONS", ""))
    torch = os.environ.get("TAUSCOPE_IMAGE_TORCH", "torch")
    build = ["--layers=false", "--pull-never", "--build-arg", f"PYTHON_IMAGE={BASE}", "--build-arg", f"TORCH={torch}"]
    buildah("bud", *build, *options, "-f", str(ROOT / "deploy/containers/Dockerfile"), "-t", IMAGE, str(ROOT))
    made = buildah("from", "--pull-never", IMAGE).stdout.strip()
    yield made
    buildah("rm", made, check=False)
    buildah("rmi", IMAGE, check=False)


def test_the_image_runs_as_nobody_and_cannot_change_its_own_programs(container: str) -> None:
    assert buildah("run", container, "--", "id", "-u").stdout.strip() == "10001"
    touched = buildah("run", container, "--", "touch", "/opt/tauscope/bin/tauscope-target", check=False)
    assert touched.returncode != 0
    assert "version" in buildah("run", container, "--", "tauscope", "--help").stdout


def test_the_target_in_the_image_serves_the_bundled_model(container: str) -> None:
    script = f"""
tauscope-target --model /models/target --device cpu --allow-reference-kernels --port {PORT} &
/wait-ready http://127.0.0.1:{PORT}/readyz 300 || exit 1
python - <<'END'
import json, urllib.request
body = json.dumps({{"token_ids": [5, 6, 7], "layers": [1], "return": "handle"}}).encode()
request = urllib.request.Request("http://127.0.0.1:{PORT}/hidden_states", body, {{"Content-Type": "application/json"}})
print("shape", json.load(urllib.request.urlopen(request, timeout=60))["shape"])
END
kill $! && wait $!
echo "ended $?"
"""
    volumes = ["-v", f"{ROOT / 'deploy/demo/models'}:/models:ro"]
    volumes += ["-v", f"{ROOT / 'deploy/box/wait-ready.sh'}:/wait-ready:ro"]
    said = buildah("run", *volumes, container, "--", "sh", "-c", script).stdout
    assert "shape [1, 3, 256]" in said
    assert "ended " in said
