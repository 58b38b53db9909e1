"""Walks a map of SPEC.md: known fields in their order, each once, unknown ones skipped."""

from collections.abc import Sequence

from tauscope_wire.parser import PullParser

__all__ = ["FieldWalk"]


class FieldWalk:
    """The fields of one map while it is read.

    A service newer than this reader may add fields; it may not reorder those that the reader knows, because payloads
    can only be placed once the fields before them are known.
    """

    def __init__(self, parser: PullParser, order: Sequence[str], where: str = "") -> None:
        self._parser = parser
        self._where = where
        self._left = parser.map_length(where or "body")
        self._known = frozenset(order)
        self._seen: set[str] = set()

    @classmethod
    def optional(cls, parser: PullParser, order: Sequence[str], where: str) -> "FieldWalk | None":
        """A walk over the map that comes next, or None when nil comes."""
        return None if parser.skip_nil(where) else cls(parser, order, where)

    def path(self, name: str) -> str:
        """The place of a field, for messages."""
        return f"{self._where}.{name}" if self._where else name

    def enter(self, name: str) -> str:
        """Advance to the value of a field.

        Returns:
            Its place, for messages.

        Raises:
            WireError: the field is missing, out of order, or a key comes twice.
        """
        while self._left:
            key = self._key()
            if key == name:
                return self.path(name)
            if key in self._known:
                raise self._parser.fail(
                    self.path(name), f"the field is missing or out of order, {key!r} is in its place"
                )
            self._parser.value(self.path(key))
        raise self._parser.fail(self.path(name), "the field is missing")

    def finish(self, *, last: bool = False) -> None:
        """Read what is left of the map.

        Args:
            last: nothing may be left.

        Raises:
            WireError: a known field comes again, or something is left.
        """
        while self._left:
            key = self._key()
            if last or key in self._known:
                raise self._parser.fail(self.path(key), "a field after the last one")
            self._parser.value(self.path(key))

    def _key(self) -> str:
        self._left -= 1
        key = self._parser.string(f"{self._where or 'body'} (a key)")
        if key in self._seen:
            raise self._parser.fail(self.path(key), "the key comes twice")
        self._seen.add(key)
        return key
