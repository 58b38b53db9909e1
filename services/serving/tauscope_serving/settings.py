"""Settings that both services share: where to listen, who may call, what is too much."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tauscope_wire.messages import Limits


def is_loopback_host(host: str) -> bool:
    """Whether `host` (a name or an address, without a port) can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class ServingSettings(BaseModel):
    """How one service listens.

    Attributes:
        host: address to listen on; anything but loopback needs keys, or `open_to_network`.
        port: TCP port; 0 picks a free one.
        uds: path of a Unix socket to listen on in place of host and port.
        keys_file: hashed API keys (`keys add`); None means open, which is for loopback only.
        open_to_network: the operator's word that no keys are wanted on a network address.
        tls_cert: PEM file; with `tls_key` the service speaks HTTPS.
        tls_key: PEM file.
        limits: bounds that `/info` shows.
        drain_s: how long requests in flight may go on after SIGTERM.
    """

    model_config = ConfigDict(frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    uds: Path | None = None
    keys_file: Path | None = None
    open_to_network: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits
    drain_s: Annotated[float, Field(ge=0)] = 30.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.uds is not None or is_loopback_host(self.host)
