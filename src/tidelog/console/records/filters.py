"""Filters of records: a text that a record contains, and a CEL expression that is true for it.

A filter sees what a person sees: decoded and masked records. A record for which the expression cannot be
evaluated does not match, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.console.records.cel import Expression
from tidelog.console.records.cel_syntax import CelError
from tidelog.console.records.cel_values import Value, kind_of
from tidelog.console.records.log_record import BatchFacts, ShownRecord
from tidelog.records.batch import Record

if TYPE_CHECKING:
    from tidelog.console.records.rules import RecordView

MAX_TEXT = 1000

SHOWN: dict[str, Callable[[ShownRecord], Value]] = {
    "key": lambda shown: shown.key.value,
    "value": lambda shown: shown.value.value,
    "keyAsText": lambda shown: shown.key.text,
    "valueAsText": lambda shown: shown.value.text,
    # A repeated header has the last of its values.
    "headers": lambda shown: {name: header.text for name, header in shown.headers},
    "topic": lambda shown: shown.record.topic,
    "partition": lambda shown: shown.record.partition,
    "offset": lambda shown: shown.record.offset,
    "timestampMs": lambda shown: shown.record.timestamp,
    "keySize": lambda shown: shown.record.key_size,
    "valueSize": lambda shown: shown.record.value_size,
    "producerId": lambda shown: shown.record.producer_id,
    "transaction": lambda shown: str(shown.record.transaction),
    "keyKind": lambda shown: shown.key.kind,
    "valueKind": lambda shown: shown.value.kind,
}
"""The fields of `record` in an expression."""

STORED: dict[str, Callable[[Record, BatchFacts], Value]] = {
    "topic": lambda record, batch: batch.topic,
    "partition": lambda record, batch: batch.partition,
    "offset": lambda record, batch: record.offset,
    "timestampMs": lambda record, batch: record.timestamp,
    "keySize": lambda record, batch: -1 if record.key is None else len(record.key),
    "valueSize": lambda record, batch: -1 if record.value is None else len(record.value),
    "producerId": lambda record, batch: batch.producer_id,
    "transaction": lambda record, batch: str(batch.transaction),
}
"""The fields that need no decoder."""

FIELDS = {"record": frozenset(SHOWN)}
EXAMPLES = (
    'record.value.status == "failed"',
    'record.keyAsText.startsWith("user-")',
    "record.partition == 0 && record.offset > 1000",
    'record.headers["trace"].matches("^[0-9a-f]+$")',
    "has(record.value.items) && record.value.items.exists(item, item.price > 100)",
    "record.value == null",
)


class FilterError(ValueError):
    """The filter is not valid; the message says what is wrong."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """Whether a record matches. `error` says why an expression could not be evaluated."""

    matches: bool
    error: str = ""


class RecordFilter:
    """Matches records with a text (in key, value or headers, in any case) and a CEL expression, if given."""

    def __init__(self, text: str = "", expression: str = "") -> None:
        if len(text) > MAX_TEXT:
            raise FilterError(f"the text has {len(text)} characters; {MAX_TEXT} are allowed")
        self.text = text
        self._folded = text.casefold()
        self._expression: Expression | None = None
        if expression.strip():
            try:
                self._expression = Expression(expression, FIELDS)
            except CelError as error:
                raise FilterError(f"the filter is not valid: {error}") from None
        self.errors = 0
        self.first_error = ""

    @property
    def is_empty(self) -> bool:
        return not self.text and self._expression is None

    def sieve(self, view: RecordView) -> RecordSieve | None:
        """Rejects most records of a search before they are decoded; None if all have to be decoded."""
        text = self._folded if view.keeps_text else ""
        expression = self._expression
        if expression is not None and (expression.reads is None or not expression.reads <= STORED.keys()):
            expression = None
        return RecordSieve(text, expression) if text or expression is not None else None

    def matches(self, shown: ShownRecord) -> bool:
        """Whether a record matches. Counts errors of the expression, and keeps the first."""
        verdict = self.test(shown)
        if verdict.error:
            self.errors += 1
            place = f"partition {shown.record.partition}, offset {shown.record.offset}"
            self.first_error = self.first_error or f"{place}: {verdict.error}"
        return verdict.matches

    def test(self, shown: ShownRecord) -> Verdict:
        """The dry run: whether one record matches, or the error of the expression."""
        if self._folded and not self._contains(shown):
            return Verdict(False)
        if self._expression is None:
            return Verdict(True)
        try:
            reads = self._expression.reads
            record = {name: SHOWN[name](shown) for name in (SHOWN if reads is None else reads)}
            found = self._expression.evaluate({"record": record})
        except CelError as error:
            return Verdict(False, str(error))
        if not isinstance(found, bool):
            return Verdict(False, f"the filter gives {kind_of(found)}; expected true or false")
        return Verdict(found)

    def _contains(self, shown: ShownRecord) -> bool:
        wanted = self._folded
        return any(
            text is not None and wanted in text.casefold()
            for text in (
                shown.key.text,
                shown.value.text,
                *(part for name, header in shown.headers for part in (name, header.text)),
            )
        )


class RecordSieve:
    """Knows records that cannot match, by their bytes: to decode one takes ten times as long."""

    __slots__ = ("_expression", "_fields", "_text")

    def __init__(self, text: str, expression: Expression | None) -> None:
        """`text` is folded; printable UTF-8 must be shown as it stands."""
        self._text = text
        self._expression = expression
        reads: Iterable[str] = () if expression is None or expression.reads is None else expression.reads
        self._fields = [(name, STORED[name]) for name in reads]

    def rejects(self, record: Record, batch: BatchFacts) -> bool:
        if self._text and self._lacks_text(record):
            return True
        if self._expression is None:
            return False
        try:
            fields = {name: of(record, batch) for name, of in self._fields}
            found = self._expression.evaluate({"record": fields})
        except CelError:
            return False  # an error is counted when the record is decoded
        return found is False

    def _lacks_text(self, record: Record) -> bool:
        wanted = self._text
        return (
            _lacks(record.value, wanted)
            and _lacks(record.key, wanted)
            and all(wanted not in name.casefold() and _lacks(data, wanted) for name, data in record.headers)
        )


def _lacks(data: bytes | None, wanted: str) -> bool:
    """Whether the text that is shown for these bytes is known, and does not contain the wanted one."""
    if data is None:
        return True
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return text.isprintable() and wanted not in text.casefold()
