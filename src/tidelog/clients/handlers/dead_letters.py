"""Records that could not be handled, written to another topic with the reason in their headers.

Key, value and headers stay what they were, to the byte; what is added comes behind the record's own headers,
as text. A record that fails again after it was sent once more from a dead-letter topic has two sets of them,
and the last one is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.clients.errors import Timeout
from tidelog.clients.handlers.tracebacks import traceback_text
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import KafkaError, MessageTooLarge, UnknownTopicOrPartition
from tidelog.records.loops import Record

PREFIX = "dead-letter."
TOPIC = PREFIX + "topic"
PARTITION = PREFIX + "partition"
OFFSET = PREFIX + "offset"
TIMESTAMP = PREFIX + "timestamp"
GROUP = PREFIX + "group"
ERROR_CLASS = PREFIX + "error.class"
ERROR_MESSAGE = PREFIX + "error.message"
ERROR_TRACEBACK = PREFIX + "error.traceback"
TRIES = PREFIX + "tries"

# A message may hold the whole value that was wrong; the header is to be read by people.
LONGEST_MESSAGE = 2_000
# Some thirty frames; of more, the first and the last ones are kept.
LONGEST_TRACEBACK = 8_000

# As large as a request may be by default: whether a record fits is for the topic to say, as it was before.
LARGEST_REQUEST = 104_857_600

DEFAULTS: Mapping[str, object] = {
    "max.request.size": LARGEST_REQUEST,
    "buffer.memory": LARGEST_REQUEST,
    "linger.ms": 0,
    "max.block.ms": 15_000,
}

# Letters go out as the bytes they came in, each on its own.
NOT_FOR_LETTERS = ("key.serializer", "value.serializer", "transactional.id")

Headers = Sequence[tuple[str, bytes | None]]


def reason_headers(
    record: Record, error: BaseException, tries: int, group_id: str
) -> list[tuple[str, bytes]]:
    """Where a record comes from and why it is here."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    texts = {
        TOPIC: record.topic,
        PARTITION: str(record.partition),
        OFFSET: str(record.offset),
        TIMESTAMP: str(record.timestamp),
        GROUP: group_id,
        ERROR_CLASS: name,
        ERROR_MESSAGE: str(error)[:LONGEST_MESSAGE],
        ERROR_TRACEBACK: traceback_text(error, LONGEST_TRACEBACK),
        TRIES: str(tries),
    }
    return [(name, text.encode(errors="replace")) for name, text in texts.items()]


class DeadLetters:
    """Writes them, and returns when they are written. Used by all streams at once."""

    def __init__(self, settings: Mapping[str, object], group_id: str) -> None:
        chosen = {**DEFAULTS, **settings}
        for name in NOT_FOR_LETTERS:
            chosen.pop(name, None)
        self._group_id = group_id
        self._producer = Producer(chosen)

    def check(self, topic: str) -> None:
        """Raises where the topic is neither there nor made by the broker when it is asked for."""
        try:
            self._producer.partitions_for(topic)
        except Timeout as error:
            raise UnknownTopicOrPartition(
                f"dead-letter topic {topic!r} does not exist and the broker does not create it: {error}"
            ) from None

    def write(
        self,
        topic: str,
        record: Record,
        key: bytes | None,
        value: bytes | None,
        error: BaseException,
        tries: int,
    ) -> None:
        """Raises the KafkaError that kept a record from being written."""
        reasons = reason_headers(record, error, tries, self._group_id)
        try:
            self._producer.send(topic, value, key, [*record.headers, *reasons]).result()
        except MessageTooLarge:
            # What was added may be too much for a topic whose limit the record is close to.
            short = [(name, text) for name, text in reasons if name != ERROR_TRACEBACK]
            self._producer.send(topic, value, key, [*record.headers, *short]).result()

    def close(self, timeout: float | None = None) -> None:
        try:
            self._producer.close(timeout)
        except KafkaError:
            pass  # what was not written was not committed either
