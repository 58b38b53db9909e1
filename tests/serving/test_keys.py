"""API keys: stored as hashes, reloaded while running, refused in one way, and their command line."""

import hmac
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from kit.echo import Echo
from kit.serve import running
from tauscope_serving.keyfile import ALL_ROLES, KeyQuota, add_key, read_key_file, revoke_key
from tauscope_serving.keys import Keyring
from tauscope_serving.keys_command import keys_app
from tauscope_serving.service import Access
from tauscope_wire.errors import AuthenticationError, PermissionDeniedError, RequestError


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_file_holds_no_key_and_only_its_owner_reads_it(path: Path) -> None:
    key = add_key(path, "team-a", roles=("read",))
    assert key not in path.read_text()
    assert key.removeprefix("tsk_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(key) >= len("tsk_") + 43  # 32 random bytes in base64


def test_changing_the_file_keeps_its_mode_and_leaves_no_temporary_file(path: Path) -> None:
    add_key(path, "a", roles=("read",))
    path.chmod(0o640)
    add_key(path, "b", roles=("read",))
    revoke_key(path, "a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(p.name for p in path.parent.iterdir()) == [".keys.json.lock", "keys.json"]


def test_keys_added_at_the_same_time_are_all_there(path: Path) -> None:
    names = [f"key-{index}" for index in range(12)]
    threads = [threading.Thread(target=add_key, args=(path, name), kwargs={"roles": ("read",)}) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.name for record in read_key_file(path).keys) == sorted(names)


def test_a_principal_has_the_roles_and_quota_of_its_key_and_a_secret_of_its_own(path: Path) -> None:
    quota = KeyQuota(tokens_per_min=5)
    first, second = add_key(path, "a", roles=("read", "draft"), quota=quota), add_key(path, "b", roles=("admin",))
    ring = Keyring(path)
    a, b = ring.principal(bearer(first)), ring.principal(bearer(second))
    assert (a.name, a.roles, a.quota) == ("a", ("read", "draft"), quota)
    assert a.handle_secret != b.handle_secret
    assert a.handle_secret not in repr(a)
    a.require("draft")
    with pytest.raises(PermissionDeniedError, match="role 'extract' needed: this key has read, draft"):
        a.require("extract")
    for role in ALL_ROLES:
        b.require(role)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", "tsk_abc"])
def test_a_request_without_a_key_is_told_that_one_is_needed(path: Path, header: str | None) -> None:
    add_key(path, "a", roles=("read",))
    with pytest.raises(AuthenticationError) as caught:
        Keyring(path).principal({} if header is None else {"authorization": header})
    assert caught.value.code == "key_required"


def test_a_wrong_key_is_unknown_however_close_it_is(path: Path) -> None:
    key = add_key(path, "a", roles=("read",))
    ring = Keyring(path)
    stored = read_key_file(path).keys[0].sha256
    for wrong in (key[:-1], key + "A", key.swapcase(), stored, "tsk_", "é" * 30, "x" * 100_000):
        with pytest.raises(AuthenticationError) as caught:
            ring.principal(bearer(wrong))
        assert caught.value.code == "key_unknown"
        assert wrong not in caught.value.message
    assert ring.principal({"authorization": f"bearer   {key} "}).name == "a"


def test_every_record_is_compared_whichever_matches(path: Path) -> None:
    keys = [add_key(path, f"k{index}", roles=("read",)) for index in range(3)]
    compared: list[str] = []

    def counting(left: str, right: str) -> bool:
        compared.append(left)
        return hmac.compare_digest(left, right)

    ring = Keyring(path, compare=counting)
    hashes = [record.sha256 for record in read_key_file(path).keys]
    for key in (*keys, "tsk_unknown"):
        compared.clear()
        try:
            ring.principal(bearer(key))
        except AuthenticationError:
            assert key == "tsk_unknown"
        assert compared == hashes


def test_a_new_and_a_revoked_key_take_effect_within_the_reload_interval(path: Path) -> None:
    clock = Clock()
    old = add_key(path, "old", roles=("read",))
    ring = Keyring(path, clock=clock)
    ring.principal(bearer(old))
    new = add_key(path, "new", roles=("read",))
    revoke_key(path, "old")
    clock.now += Keyring.RELOAD_INTERVAL_S
    assert ring.principal(bearer(new)).name == "new"
    with pytest.raises(AuthenticationError):
        ring.principal(bearer(old))


def test_a_broken_file_keeps_the_keys_of_before_and_a_removed_one_revokes_all(path: Path) -> None:
    clock = Clock()
    key = add_key(path, "a", roles=("read",))
    ring = Keyring(path, clock=clock)
    ring.principal(bearer(key))
    good = path.read_bytes()
    path.write_text("{ half a fi")
    clock.now += 2
    assert ring.principal(bearer(key)).name == "a"
    path.write_bytes(good)
    clock.now += 2
    assert ring.principal(bearer(key)).name == "a"
    path.unlink()
    clock.now += 2
    with pytest.raises(AuthenticationError):
        ring.principal(bearer(key))


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "keys": [{"name": "a"}]}'])
def test_what_is_not_a_keys_file_is_named_by_path_without_its_content(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(RequestError, match=r"keys\.json: not a keys file"):
        read_key_file(path)


@pytest.fixture
def secured(path: Path) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    keys = {role: add_key(path, f"{role}er", roles=(role,)) for role in ALL_ROLES}
    echo = Echo(access=Access(keyring=Keyring(path)))
    with running(echo.app) as url, httpx.Client(base_url=url) as client:
        yield client, keys


def test_over_http_each_route_takes_its_role_or_admin_and_nothing_else(
    secured: tuple[httpx.Client, dict[str, str]],
) -> None:
    client, keys = secured
    for route, role in (("/extract", "extract"), ("/draft", "draft"), ("/admin", "admin")):
        for other, key in keys.items():
            answer = client.get(route, headers=bearer(key))
            if other in (role, "admin"):
                assert answer.json() == f"{other}er"
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "role_required")
        assert client.get(route).status_code == 401
        assert client.get(route).headers["www-authenticate"] == "Bearer"
        unknown = client.get(route, headers=bearer("tsk_guess"))
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, "key_unknown")


def test_usage_of_all_keys_is_shown_to_admins_only_while_health_is_open(
    secured: tuple[httpx.Client, dict[str, str]],
) -> None:
    client, keys = secured
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer(keys["read"])).status_code == 403
    client.post("/sum", json={"token_ids": [1]}, headers=bearer(keys["read"]))
    assert 'key="reader",route="/sum",status="200"' in client.get("/metrics", headers=bearer(keys["admin"])).text


def test_a_body_of_a_caller_without_a_key_is_not_read(secured: tuple[httpx.Client, dict[str, str]]) -> None:
    client, _ = secured
    assert client.post("/sum", content=b"{" * 100_000).status_code == 401  # not 413, not 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:5000", 200),
        ("http://localhost", 200),
        ("http://[::1]:30010", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1.evil.example", 403),
    ],
)
def test_a_web_page_of_another_host_cannot_use_an_open_service(origin: str | None, status: int) -> None:
    with running(Echo().app) as url:
        headers = {} if origin is None else {"Origin": origin}
        assert httpx.post(f"{url}/sum", json={"token_ids": [1]}, headers=headers).status_code == status


def run_keys(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.add_typer(keys_app(), name="keys")
    result = CliRunner().invoke(app, ["keys", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_line_makes_shows_and_revokes_keys(path: Path) -> None:
    code, out, err = run_keys(
        "add", "team-a", "--keys", str(path), "--role", "read", "--role", "extract", "--tokens-per-min", "9"
    )
    assert code == 0
    key = out.strip()
    assert key not in err
    assert Keyring(path).principal(bearer(key)).roles == ("read", "extract")
    code, out, _ = run_keys("list", "--keys", str(path), "--json")
    assert json.loads(out) | {"created": ""} == {
        "name": "team-a",
        "roles": ["read", "extract"],
        "quota": {"tokens_per_min": 9},
        "created": "",
    }
    assert run_keys("list", "--keys", str(path))[1].startswith("team-a  read,extract  tokens_per_min=9  since 20")
    assert run_keys("revoke", "team-a", "--keys", str(path))[0] == 0
    assert run_keys("list", "--keys", str(path)) == (0, "", f"No keys in {path}.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "team a"), "key name 'team a': use 1 to 64 letters"),
        (("add", "b", "--role", "root"), "--role root: the roles are read, extract, draft, admin"),
        (("add", "a"), "the name is taken"),
        (("revoke", "b"), "(known: a)"),
    ],
)
def test_the_command_line_says_in_one_line_what_is_wrong(path: Path, arguments: tuple[str, ...], message: str) -> None:
    add_key(path, "a", roles=("read",))
    code, out, err = run_keys(*arguments, "--keys", str(path))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_key_commands_load_no_web_framework_and_no_torch() -> None:
    heavy = ("torch", "fastapi", "uvicorn")
    probe = f"import sys, tauscope_serving.keys_command; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert run.stdout.strip() == "[]"
