"""The names others may rely on, and what importing them costs."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tauscope_wire
from tauscope_wire.acceptance_reader import ACCEPTANCE_FIELDS
from tauscope_wire.chunks_reader import CHUNK_FIELDS
from tauscope_wire.draft_reader import DRAFT_FIELDS
from tauscope_wire.errors import ErrorCode
from tauscope_wire.hidden_reader import HIDDEN_FIELDS
from tauscope_wire.limits import ReadLimits
from tauscope_wire.logits_reader import LOGITS_FIELDS

PUBLIC = {
    "body": ["SLICE_BYTES", "Body"],
    "checksums": ["HEX_LENGTH", "checksum", "digest_of"],
    "connection": ["Connection"],
    "expectations": ["DraftExpectation", "HiddenExpectation"],
    "limits": ["DEFAULT_LIMITS", "ReadLimits"],
    "reader": ["read_acceptance", "read_draft", "read_hidden"],
    "source": ["SLICE_BYTES", "BufferedSource", "BytesSource", "IterSource", "Source", "wire_error"],
    "tensors": ["AcceptanceAnswer", "DraftAnswer", "DrafterSummary", "HiddenAnswer", "LogitsSummary"],
    "transport": ["SOURCE", "AnswerStream", "FastTransport"],
    "writer": ["Body", "TensorChunk", "acceptance_body", "chunks_of", "draft_body", "hidden_body"],
}
SPEC = (Path(tauscope_wire.__file__).parent / "SPEC.md").read_text()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_module_offers_exactly_these_names(name: str) -> None:
    module = importlib.import_module(f"tauscope_wire.{name}")
    assert module.__all__ == PUBLIC[name]
    assert all(hasattr(module, public) for public in module.__all__)


def test_every_name_that_is_offered_exists() -> None:
    for info in pkgutil.iter_modules(tauscope_wire.__path__):
        module = importlib.import_module(f"tauscope_wire.{info.name}")
        for public in getattr(module, "__all__", ()):
            assert hasattr(module, public), (info.name, public)


def test_importing_the_wire_loads_no_model_library_and_no_web_framework() -> None:
    names = ", ".join(f"tauscope_wire.{info.name}" for info in pkgutil.iter_modules(tauscope_wire.__path__))
    heavy = "torch transformers fastapi uvicorn tauscope_client tauscope_serving"
    code = f"import sys, {names}; print(sorted(set({heavy.split()!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def rows(section: str) -> list[str]:
    """The field names of a table of the specification, in order."""
    return re.findall(r"^\| \d+ \| `(\w+)` \|", section, flags=re.M)


def test_the_specification_lists_the_fields_in_the_order_of_the_reader() -> None:
    hidden, _, rest = SPEC.partition("**Chunks.**")
    chunks, _, rest = rest.partition("**Logits.**")
    logits, _, rest = rest.partition("## 6. ")
    draft, _, acceptance = rest.partition("## 10. ")
    assert tuple(rows(hidden)) == HIDDEN_FIELDS
    assert tuple(rows(chunks)) == CHUNK_FIELDS
    assert tuple(rows(logits)) == LOGITS_FIELDS
    assert tuple(rows(draft)) == DRAFT_FIELDS
    assert tuple(rows(acceptance)) == ACCEPTANCE_FIELDS


def test_the_specification_names_every_code_of_the_reader_and_its_limits() -> None:
    for code in ("BODY_TRUNCATED", "BODY_TRAILING", "BODY_CORRUPT", "SCHEMA_UNKNOWN", "LABEL_MISMATCH"):
        assert f"`{ErrorCode[code]}`" in SPEC
    for code in ("CHECKSUM_MISMATCH", "NON_FINITE_PAYLOAD", "LIMIT_EXCEEDED", "ANSWER_TOO_LARGE"):
        assert f"`{ErrorCode[code]}`" in SPEC
    limits = ReadLimits()
    stated = (
        "4 MiB, one string 64 KiB, 65,536 items of one container, 8 containers deep, 2^24 tokens, 16 GiB of tensors"
    )
    assert stated in " ".join(SPEC.split())
    assert (limits.max_head_bytes, limits.max_string_bytes, limits.max_items) == (4 << 20, 64 << 10, 65_536)
    assert (limits.max_depth, limits.max_tokens, limits.max_tensor_bytes) == (8, 2**24, 16 << 30)
