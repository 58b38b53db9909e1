"""Names of stored states. A handle addresses the request, not the data: equal requests have equal names."""

import hashlib
import hmac
import json
from typing import Any

from tauscope_target.jobs import HiddenJob
from tauscope_wire.messages import ModelInfo, Numerics

HANDLE_BYTES = 24
"""192 bits: nobody finds a name by trying."""


def numerics_digest(model: ModelInfo, numerics: Numerics) -> bytes:
    """Digest of what, besides the request, decides the numbers."""
    facts: dict[str, Any] = {"model": model.model_dump(mode="json"), "numerics": numerics.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def handle_of(job: HiddenJob, context: bytes, *, secret: bytes) -> str:
    """The handle of a request.

    Args:
        job: what was asked.
        context: see `numerics_digest`.
        secret: keyed, so that a name tells nothing about the prompt and cannot be made by somebody else.
    """
    logits = None if job.logits is None else [job.logits.top_k, job.logits.next_token]
    asked = json.dumps([list(job.planes), job.start, job.stop, job.dtype, logits]).encode()
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (context, asked, job.token_ids.astype("<i4").tobytes()):
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()[:HANDLE_BYTES].hex()
