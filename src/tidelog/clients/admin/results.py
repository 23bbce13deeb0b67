"""The result of a call about several things: a value or an error for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from tidelog.errors import KafkaError, error_class, error_name

K = TypeVar("K")
V = TypeVar("V")


class Results(Mapping[K, V], Generic[K, V]):
    """A mapping of the values; `errors` has the errors, and `results[key]` raises the error of its key.

    A call raises the first error unless it is made with `partial=True`.
    """

    __slots__ = ("_values", "errors")

    def __init__(self, outcomes: Mapping[K, V | KafkaError]) -> None:
        self._values: dict[K, V] = {}
        self.errors: dict[K, KafkaError] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                self.errors[key] = outcome
            else:
                self._values[key] = outcome

    def __getitem__(self, key: K) -> V:
        if key in self.errors:
            raise self.errors[key]
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Results({self._values!r}, errors={self.errors!r})"


def settled(outcomes: Mapping[K, V | KafkaError], partial: bool) -> Results[K, V]:
    """The results. Raises the first error unless `partial`."""
    results = Results(outcomes)
    if not partial:
        for error in results.errors.values():
            raise error
    return results


def names_in(given: Iterable[str]) -> list[str]:
    """The names, each once. Raises TypeError for a str, which Python would take for a list of letters."""
    if isinstance(given, str):
        raise TypeError(f"expected a list of names, such as [{given!r}], not the text {given!r}")
    return list(dict.fromkeys(given))


def error_from(code: int, message: str | None, what: str) -> KafkaError | None:
    """The exception of an error code, with the message of the cluster if there is one."""
    return error_class(code)(message or f"{what}: {error_name(code)}") if code else None


class Answered(Protocol):
    """The part of an answer about one thing."""

    @property
    def error_code(self) -> int: ...


def first_code(results: Sequence[Answered]) -> int:
    """The error code of the first result: a broker that is not the controller sends it in every result."""
    return results[0].error_code if results else 0


def raise_for(code: int, message: str | None, what: str) -> None:
    error = error_from(code, message, what)
    if error is not None:
        raise error
