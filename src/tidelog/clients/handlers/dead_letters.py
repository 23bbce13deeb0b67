"""Dead letters: records that could not be handled, written to another topic with the reason in headers.

Key, value and headers are the same bytes; the reason follows in more headers, as text. A record that was sent
again from a dead-letter topic and fails again has two sets of them: the last set is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.clients.errors import TimeoutException
from tidelog.clients.handlers.tracebacks import traceback_text
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import KafkaError, MessageTooLarge, UnknownTopicOrPartition
from tidelog.records.loops import ConsumerRecord

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

# A message may contain the whole value; the header is for people.
LONGEST_MESSAGE = 2_000
# About thirty frames; of more, the first and the last are kept.
LONGEST_TRACEBACK = 8_000

# The default limit of a broker's request: the topic decides whether a record fits.
LARGEST_REQUEST = 104_857_600

DEFAULTS: Mapping[str, object] = {
    "max.request.size": LARGEST_REQUEST,
    "buffer.memory": LARGEST_REQUEST,
    "linger.ms": 0,
    "max.block.ms": 15_000,
}

# Dead letters are the bytes of their records, and each is sent at once.
NOT_FOR_LETTERS = ("key.serializer", "value.serializer", "transactional.id")

Headers = Sequence[tuple[str, bytes | None]]


def reason_headers(
    record: ConsumerRecord, error: BaseException, tries: int, group_id: str
) -> list[tuple[str, bytes]]:
    """The headers with the source of a record and its error."""
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
    """Writes dead letters. All streams use it at the same time."""

    def __init__(self, settings: Mapping[str, object], group_id: str) -> None:
        chosen = {**DEFAULTS, **settings}
        for name in NOT_FOR_LETTERS:
            chosen.pop(name, None)
        self._group_id = group_id
        self._producer = Producer(chosen)

    def check(self, topic: str) -> None:
        """Raises if the topic does not exist and the broker does not create it."""
        try:
            self._producer.partitions_for(topic)
        except TimeoutException as error:
            raise UnknownTopicOrPartition(
                f"dead-letter topic {topic!r} does not exist and the broker does not create it: {error}"
            ) from None

    def write(
        self,
        topic: str,
        record: ConsumerRecord,
        key: bytes | None,
        value: bytes | None,
        error: BaseException,
        tries: int,
    ) -> None:
        """Write a record and wait for it. Raises the KafkaError of the record."""
        reasons = reason_headers(record, error, tries, self._group_id)
        try:
            self._producer.send(topic, value, key, [*record.headers, *reasons]).result()
        except MessageTooLarge:
            # With the headers the record may exceed max.message.bytes of the topic.
            short = [(name, text) for name, text in reasons if name != ERROR_TRACEBACK]
            self._producer.send(topic, value, key, [*record.headers, *short]).result()

    def close(self, timeout: float | None = None) -> None:
        try:
            self._producer.close(timeout)
        except KafkaError:
            pass  # records that are not written are not committed
