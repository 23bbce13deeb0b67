"""Filters of records: a text that a record contains, and a CEL expression that is true for it.

A filter sees what a person sees: decoded and masked records. A record for which the expression cannot be
evaluated does not match, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.console.records.cel import Expression
from tidelog.console.records.cel_syntax import CelError
from tidelog.console.records.cel_values import Value, kind_of
from tidelog.console.records.log_record import ShownRecord

MAX_TEXT = 1000
FIELDS = {
    "record": frozenset(
        {
            "key", "value", "keyAsText", "valueAsText", "headers", "topic", "partition", "offset",
            "timestampMs", "keySize", "valueSize", "producerId", "transaction", "keyKind", "valueKind",
        }
    )
}  # fmt: skip
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
            found = self._expression.evaluate({"record": variables(shown)})
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


def variables(shown: ShownRecord) -> dict[str, Value]:
    """The fields of `record` in an expression. A repeated header has the last of its values."""
    record = shown.record
    return {
        "key": shown.key.value,
        "value": shown.value.value,
        "keyAsText": shown.key.text,
        "valueAsText": shown.value.text,
        "headers": {name: header.text for name, header in shown.headers},
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestampMs": record.timestamp,
        "keySize": record.key_size,
        "valueSize": record.value_size,
        "producerId": record.producer_id,
        "transaction": str(record.transaction),
        "keyKind": shown.key.kind,
        "valueKind": shown.value.kind,
    }
