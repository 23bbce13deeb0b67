"""The chain of interceptors of producers and consumers: creates, orders and closes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from tidelog.config import ConfigError

log = logging.getLogger("tidelog.clients")


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Chain(Generic[T]):
    """Interceptors in the order of interceptor.classes, which has classes or objects of the given class."""

    __slots__ = ("_chain",)

    def __init__(self, kind: type[T], given: Sequence[object]) -> None:
        self._chain: list[T] = []
        for entry in given:
            made: object = entry() if isinstance(entry, type) else entry
            if not isinstance(made, kind):
                raise ConfigError(
                    "interceptor.classes",
                    repr(entry),
                    f"expected subclasses of {kind.__name__} or objects of one",
                )
            self._chain.append(made)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def close(self) -> None:
        for interceptor in self._chain:
            try:
                interceptor.close()
            except Exception:
                log.exception("close of %r failed", interceptor)
