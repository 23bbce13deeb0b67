"""Finds the error codes in an answer, by the fields of its message class."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct

# The error codes of a struct: its own error_code fields, and the fields (and whether each is an array) of
# structs that have some.
Places = tuple[tuple[str, ...], tuple[tuple[str, bool], ...]]


class ErrorCodes:
    """Finds error codes in answers, and remembers the fields of each message class."""

    def __init__(self) -> None:
        self._places: dict[type[Struct], Places] = {}

    def of(self, answer: Message) -> Iterator[int]:
        """Every error code in the answer that is not NONE."""
        return filter(None, self.every(answer))

    def every(self, answer: Message) -> Iterator[int]:
        """Every error code in the answer, including NONE."""
        return self._walk(answer)

    def _walk(self, struct: Struct) -> Iterator[int]:
        cls = type(struct)
        places = self._places.get(cls)
        if places is None:
            places = self._places[cls] = self._find(cls)
        codes, inner = places
        for name in codes:
            code: int = getattr(struct, name)
            yield code
        for name, array in inner:
            value = getattr(struct, name)
            if value is None:
                continue
            if array:
                for item in value:
                    yield from self._walk(item)
            else:
                yield from self._walk(value)

    def _find(self, cls: type[Struct]) -> Places:
        codes = tuple(field.name for field in cls.FIELDS if field.name == "error_code")
        inner = []
        for field in cls.FIELDS:
            if field.kind == "struct":
                kind = field.struct_type(cls)
                if any(self._find(kind)):
                    inner.append((field.name, field.array))
        return codes, tuple(inner)
