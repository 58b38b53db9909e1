"""Corpus: Python files of permissively licensed packages on this machine, cut into functions and split by file.

Owns which files count, how functions are cut from them, deduplication and the held-out split. Everything is a
function of the sorted file
list: same installed packages, same corpus.
"""

import ast
import hashlib
import multiprocessing
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from deploy.demo.train.chat import Function
from deploy.demo.train.licences import judge_distribution

STDLIB = "python-stdlib"
STDLIB_LICENCE = "PSF-2.0"
SKIPPED_PATHS = re.compile(
    r"/(tests?|testing|_?vendor(ed)?|_vendored_packages|third_party|thirdparty|externals?|extern|_distutils_hack|benchmarks?|_?generated|"
    r"idlelib|lib2to3|turtledemo|pydoc_data|encodings|site-packages/.*\.libs)/|_pb2(_grpc)?\.py$|/(dummy|test)_\w+\.py$|_test\.py$|/conftest\.py$"
)
"""Tests, generated files and vendored copies: the last carry licences that the distribution's metadata does not
state.
"""
MIN_FILE_BYTES, MAX_FILE_BYTES, MAX_LINE_CHARS = 300, 150_000, 2000
MIN_LINES, MAX_LINES = 3, 60
MIN_BODY_CHARS, MAX_BODY_CHARS, MAX_HEAD_CHARS = 25, 1300, 320
MIN_SUMMARY_CHARS, MAX_SUMMARY_CHARS = 8, 160
HELDOUT_SHARE = 10
"""One file in ten is held out, picked by a hash of its path below the library folder."""


class SourceFile(NamedTuple):
    """One file to read: the distribution it belongs to, its absolute path, and its path below the library folder."""

    package: str
    path: str
    relative: str


class ParsedFile(NamedTuple):
    """One parsed file: its text without a leading comment block, and its functions."""

    source: SourceFile
    text: str
    functions: list[Function]


@dataclass
class Corpus:
    """Functions split by file, raw texts of the training files, and a record of where they came from."""

    train: list[Function] = field(default_factory=list)
    heldout: list[Function] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    packages: dict[str, dict[str, object]] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    num_files: int = 0


def digest_of(text: str) -> int:
    """A stable 48-bit integer of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest(), "big")


def list_sources(corpus: Corpus, packages: tuple[str, ...] | None = None) -> list[SourceFile]:
    """Files of every installed distribution whose licence allows it, and of the standard library; fills the corpus's
    record.
    """
    found: dict[str, SourceFile] = {}
    for distribution in sorted(metadata.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()):
        name = distribution.metadata["Name"]
        if not name or (packages is not None and name.lower() not in packages):
            continue
        verdict = judge_distribution(distribution)
        files = [f for f in distribution.files or [] if f.suffix == ".py"]
        if not verdict.allowed:
            if files:
                corpus.excluded[name] = f"{verdict.licence} ({verdict.evidence})"
            continue
        for item in files:
            path = str(Path(str(item.locate())).resolve())
            found.setdefault(path, SourceFile(name, path, str(item)))
        corpus.packages[name] = {
            "version": distribution.version,
            "licence": verdict.licence,
            "evidence": verdict.evidence,
        }
    if packages is None or STDLIB in packages:
        root = Path(sysconfig.get_path("stdlib")).resolve()
        corpus.packages[STDLIB] = {
            "version": sysconfig.get_python_version(),
            "licence": STDLIB_LICENCE,
            "evidence": "CPython's own licence",
        }
        for file in root.rglob("*.py"):
            relative = str(file.relative_to(root))
            if "site-packages" not in relative and "dist-packages" not in relative:
                found.setdefault(str(file), SourceFile(STDLIB, str(file), f"lib/{relative}"))
    return [s for s in sorted(found.values(), key=lambda s: s.relative) if is_wanted(s)]


def is_wanted(source: SourceFile) -> bool:
    """Whether a file is of a useful size and neither test, generated nor vendored."""
    if SKIPPED_PATHS.search(f"/{source.relative}"):
        return False
    try:
        return MIN_FILE_BYTES < Path(source.path).stat().st_size < MAX_FILE_BYTES
    except OSError:
        return False


def first_sentence(docstring: str) -> str | None:
    """First sentence of a docstring on one line, without its full stop; None when it is too short, too long or would
    need escapes.
    """
    paragraph = " ".join(re.split(r"\n\s*\n", docstring.strip())[0].split())
    sentence = re.split(r"(?<=[a-z)`'\]])\.\s", paragraph + " ")[0].strip().rstrip(".")
    if not MIN_SUMMARY_CHARS <= len(sentence) <= MAX_SUMMARY_CHARS or '"""' in sentence or "\\" in sentence:
        return None
    return sentence


def cut_function(lines: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function | None:
    """Cut one function out of its file, dedented; None when it does not fit the chat format."""
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    first = node.body[0]
    if not MIN_LINES <= end - start <= MAX_LINES or first.lineno - 1 <= start:
        return None
    summary, body_start = None, first.lineno - 1
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        if len(node.body) == 1:
            return None
        summary, body_start = first_sentence(first.value.value), first.end_lineno or body_start
    indent = len(lines[start]) - len(lines[start].lstrip())
    head = textwrap.dedent("\n".join(lines[start : first.lineno - 1])).rstrip()
    rest = lines[body_start:end]
    if any(line.strip() and len(line) - len(line.lstrip()) < indent for line in rest):
        return None
    body = "\n".join(line[indent:] for line in rest).strip("\n")
    if not head.startswith(("def ", "async def ")) or not head.endswith(":") or len(head) > MAX_HEAD_CHARS:
        return None
    if not MIN_BODY_CHARS <= len(body) <= MAX_BODY_CHARS or "\t" in body or "<|" in head + body:
        return None
    if re.fullmatch(r"\s*raise \w*Error[^\n]*", body):
        return None
    signature = re.sub(r"\s+", " ", head[head.index("def ") + 4 : -1])
    signature = re.sub(r"\( ", "(", re.sub(r",? \)", ")", signature))
    return Function(node.name, head, signature, summary, body)


def functions_in(text: str, tree: ast.Module) -> Iterator[Function]:
    """Functions and methods at module, class, ``if`` and ``try`` level, not nested ones."""
    lines, todo = text.split("\n"), list[ast.AST]([tree])
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if isinstance(child, ast.ClassDef | ast.If | ast.Try):
                todo.append(child)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                function = cut_function(lines, child)
                if function:
                    yield function


def parse_file(source: SourceFile) -> ParsedFile | None:
    """Read and cut one file; None for what is not valid UTF-8 Python."""
    try:
        text = Path(source.path).read_text(encoding="utf-8").replace("\r\n", "\n")
        if max(map(len, text.split("\n"))) > MAX_LINE_CHARS:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return None
    return ParsedFile(source, re.sub(r"\A(#[^\n]*\n|\s*\n)+", "", text), list(functions_in(text, tree)))


def shape_of(body: str) -> str:
    """What deduplication compares: the body without white space and with class names unified, which folds copies
    between sibling classes.
    """
    return re.sub(r"\s+", "", re.sub(r"\b[A-Z]\w*[a-z]\w*\b", "C", body))


def collect(*, workers: int, max_files: int | None = None, packages: tuple[str, ...] | None = None) -> Corpus:
    """Build the corpus of this machine.

    Args:
        workers: Processes that parse files.
        max_files: Only this many files, evenly spaced over the list (for smoke runs).
        packages: Only these distributions (lower case), for tests.
    """
    corpus = Corpus()
    sources = list_sources(corpus, packages)
    if max_files is not None:
        sources = sources[:: max(1, len(sources) // max_files)][:max_files]
    if workers > 1:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            parsed = pool.map(parse_file, sources, chunksize=32)
    else:
        parsed = [parse_file(s) for s in sources]
    seen: set[int] = set()
    used: dict[str, list[int]] = {}
    for item in parsed:
        if item is None:
            continue
        corpus.num_files += 1
        size = used.setdefault(item.source.package, [0, 0])
        size[0] += 1
        size[1] += len(item.text)
        is_heldout = digest_of(item.source.relative) % HELDOUT_SHARE == 0
        if not is_heldout:
            corpus.raw.append(item.text)
        for function in item.functions:
            key = digest_of(shape_of(function.body))
            if key not in seen:
                seen.add(key)
                (corpus.heldout if is_heldout else corpus.train).append(function)
    corpus.packages = {
        name: {**record, "files": used[name][0], "chars": used[name][1]}
        for name, record in corpus.packages.items()
        if name in used
    }
    return corpus
