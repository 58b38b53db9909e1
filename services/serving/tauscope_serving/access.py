"""Who may call a route: API key, role and quota, as FastAPI dependencies."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Depends, Request

from tauscope_serving.keys import KeyRole, Principal


def allowed(role: KeyRole) -> Callable[[Request], AsyncIterator[Principal]]:
    """Dependency that admits a request of a key with `role` and holds its place in the key's quota.

    Raises:
        AuthenticationError: no key or an unknown one.
        PermissionDeniedError: the key lacks the role.
        QuotaError: the key's quota is used up.
    """

    async def admit(request: Request) -> AsyncIterator[Principal]:
        access = request.app.state.access
        principal: Principal = access.keyring.principal(request.headers)
        request.state.key_name = principal.name
        principal.require(role)
        with access.quotas.admitted(principal):
            yield principal

    return admit


Reader = Annotated[Principal, Depends(allowed("read"))]
Extractor = Annotated[Principal, Depends(allowed("extract"))]
DraftCaller = Annotated[Principal, Depends(allowed("draft"))]
Admin = Annotated[Principal, Depends(allowed("admin"))]
