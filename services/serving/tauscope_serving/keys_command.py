"""`keys add|list|revoke`: the same commands for both services, mounted by each command line."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tauscope_serving.keyfile import ALL_ROLES, KeyQuota, KeyRole, add_key, read_key_file, revoke_key
from tauscope_wire.errors import RequestError

KeysFile = Annotated[
    Path, typer.Option("--keys", help="The keys file; the same path is given to the service.", show_default=False)
]
Limit = Annotated[int | None, typer.Option(min=1, help="Bound of this key; unlimited if left out.")]


def keys_app() -> typer.Typer:
    """The sub-command `keys`: `app.add_typer(keys_app(), name="keys")`."""
    app = typer.Typer(help="API keys of a service that others may reach.", no_args_is_help=True)
    app.command("add")(_add)
    app.command("list")(_list)
    app.command("revoke")(_revoke)
    return app


def _add(
    name: Annotated[str, typer.Argument(help="Who will use the key; shown in logs and metrics.")],
    keys: KeysFile,
    *,
    role: Annotated[
        list[str] | None,
        typer.Option(help=f"What the key may do, repeatable: {', '.join(ALL_ROLES)}. [default: read, extract]"),
    ] = None,
    requests_per_min: Limit = None,
    tokens_per_min: Limit = None,
    bytes_per_min: Limit = None,
    concurrent_requests: Limit = None,
    store_bytes: Annotated[int | None, typer.Option(min=0, help="Bytes of handles that this key may keep.")] = None,
) -> None:
    """Make a key. It is printed once, on standard output, and stored nowhere."""
    quota = KeyQuota(
        requests_per_min=requests_per_min,
        tokens_per_min=tokens_per_min,
        bytes_per_min=bytes_per_min,
        concurrent_requests=concurrent_requests,
        store_bytes=store_bytes,
    )
    with _one_line():
        key = add_key(keys, name, roles=_roles(role or ["read", "extract"]), quota=quota)
    typer.echo(
        f"Key {name!r} added to {keys}; running services know it within a second. It is shown only now:", err=True
    )
    typer.echo(key)


def _list(
    keys: KeysFile, *, as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False
) -> None:
    """Show the keys: names, roles, quotas; never a key or its hash."""
    with _one_line():
        records = read_key_file(keys).keys
    for record in records:
        quota = {name: value for name, value in record.quota.model_dump().items() if value is not None}
        created = datetime.fromtimestamp(record.created_unix_s, UTC).isoformat(timespec="seconds")
        if as_json:
            fields = {"name": record.name, "roles": list(record.roles), "quota": quota, "created": created}
            typer.echo(json.dumps(fields))
        else:
            bounds = " ".join(f"{name}={value}" for name, value in quota.items()) or "no quota"
            typer.echo(f"{record.name}  {','.join(record.roles)}  {bounds}  since {created}")
    if not records:
        typer.echo(f"No keys in {keys}.", err=True)


def _revoke(name: Annotated[str, typer.Argument(help="Name of the key.")], keys: KeysFile) -> None:
    """Remove a key; running services refuse it within a second."""
    with _one_line():
        revoke_key(keys, name)
    typer.echo(f"Key {name!r} revoked.", err=True)


def _roles(names: list[str]) -> tuple[KeyRole, ...]:
    known: dict[str, KeyRole] = {role: role for role in ALL_ROLES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestError(f"--role {unknown[0]}: the roles are {', '.join(ALL_ROLES)}")
    return tuple(known[name] for name in dict.fromkeys(names))


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn a domain error into one line on standard error and exit code 2."""
    try:
        yield
    except RequestError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(2) from None
