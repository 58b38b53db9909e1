"""Settings of the target service beyond where it listens."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tauscope_serving.settings import ServingSettings
from tauscope_wire.messages import Limits

GIB = 1 << 30

DEFAULT_LIMITS = Limits(
    max_body_bytes=64 << 20,
    max_tokens=32_768,
    max_layers=64,
    max_answer_bytes=4 * GIB,
    max_queued=256,
    max_new_tokens=8_192,
    max_top_k=256,
    default_deadline_s=600.0,
    max_deadline_s=3_600.0,
)


class TargetSettings(BaseModel):
    """How the target service serves.

    Attributes:
        serving: address, keys, TLS, limits.
        pass_tokens: budget of a pass in tokens, padding included; None takes the engine's own.
        max_batch: most requests that share a pass.
        max_wait_s: how long a request may wait for company.
        gather_tokens: waiting tokens at which a pass starts at once; 0 never waits.
        store_bytes: memory for handles.
        ttl_s: how long a handle may live.
        store_dir: folder in memory for files of handles, which a drafter service on this machine maps; `auto` makes one
            under /dev/shm; None keeps handles in the memory of the process.
        spill_dir: folder for handles beyond memory and beyond the process, or None.
        spill_bytes: budget of that folder.
        stuck_s: a pass longer than this makes the service not ready.
    """

    model_config = ConfigDict(frozen=True)

    serving: ServingSettings
    pass_tokens: Annotated[int, Field(ge=1)] | None = None
    max_batch: Annotated[int, Field(ge=1)] = 64
    max_wait_s: Annotated[float, Field(ge=0)] = 0.005
    gather_tokens: Annotated[int, Field(ge=0)] = 0
    store_bytes: Annotated[int, Field(ge=0)] = 4 * GIB
    ttl_s: Annotated[float, Field(gt=0)] = 3_600.0
    store_dir: Literal["auto"] | Path | None = None
    spill_dir: Path | None = None
    spill_bytes: Annotated[int, Field(ge=0)] = 64 * GIB
    stuck_s: Annotated[float, Field(gt=0)] = 900.0

    @property
    def limits(self) -> Limits:
        """Bounds that `/info` shows."""
        return self.serving.limits
