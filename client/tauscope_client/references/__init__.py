"""Reference completions: what the target itself says, from whichever server can say it.

One module per source (`sglang`, `openai`, `embedded`, `stored`), one record for all of them. A source gets rendered
prompt ids and returns ids; it never renders a prompt itself.
"""

from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.references.source import Completion, ReferenceSource, Turn

__all__ = ["Completion", "Reference", "ReferenceSource", "Turn", "ids_sha256"]
