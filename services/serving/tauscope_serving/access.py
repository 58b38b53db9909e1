"""Who may call a route: API key, role and quota, as FastAPI dependencies."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from tauscope_serving.keys import KeyRole, Principal
from tauscope_serving.settings import is_loopback_host
from tauscope_wire.errors import PermissionDeniedError


def allowed(role: KeyRole) -> Callable[[Request], AsyncIterator[Principal]]:
    """Dependency that admits a request of a key with `role` and holds its place in the key's quota.

    Raises:
        AuthenticationError: no key or an unknown one.
        PermissionDeniedError: the key lacks the role.
        QuotaError: the key's quota is used up.
    """

    async def admit(request: Request) -> AsyncIterator[Principal]:
        access = request.app.state.access
        if access.keyring.is_open:
            _refuse_foreign_page(request)
        principal: Principal = access.keyring.principal(request.headers)
        request.state.key_name = principal.name
        principal.require(role)
        async with access.quotas.admitted(principal):
            yield principal

    return admit


def _refuse_foreign_page(request: Request) -> None:
    """Without keys, a web page that a user of this machine visits could call the service through the browser.

    Browsers name the page in `Origin`; programs do not send it. Keys make this check needless: a page has none.

    Raises:
        PermissionDeniedError: the page is not one of this machine (this service's own `/docs`, for example).
    """
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback_host(urlsplit(origin).hostname or ""):
        raise PermissionDeniedError(
            "a web page of another machine may not call a service that is open without keys; use keys, or a program",
            details={"header": "origin"},
        )


def key_to_forward(request: Request) -> str | None:
    """The caller's own key, for a service that asks another one on its behalf; None where no keys are in use.

    The other service then decides by what this caller may see, not by what the asking service may.
    """
    if request.app.state.access.keyring.is_open:
        return None
    return request.headers.get("authorization", "").partition(" ")[2].strip() or None


Reader = Annotated[Principal, Depends(allowed("read"))]
Extractor = Annotated[Principal, Depends(allowed("extract"))]
DraftCaller = Annotated[Principal, Depends(allowed("draft"))]
Admin = Annotated[Principal, Depends(allowed("admin"))]
