"""Other people's Kafka clients behind one small face: write these records, read that partition.

Every adapter gives back exactly what its client saw: key, value and header values as bytes or None.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_SECONDS = 30.0

Header = tuple[str, bytes | None]


@dataclass(slots=True, frozen=True)
class Message:
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None  # None: whatever the client puts there

    def content(self) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
        return self.key, self.value, self.headers


class Client(Protocol):
    name: str
    sets_timestamps: bool

    def can_write(self, message: Message) -> bool:
        """False where the client itself refuses what Kafka's format allows."""

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        partition: int = 0,
    ) -> None: ...

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        """The next `count` messages of an assigned partition, in order."""


def too_few(client: str, topic: str, got: int, wanted: int) -> AssertionError:
    return AssertionError(f"{client} read {got} of {wanted} messages of {topic} within {READ_SECONDS} s")


class Kcat:
    """The command line client; binary-safe by delimiters that no test record contains."""

    name = "kcat"
    sets_timestamps = False
    _between_messages = b"\x1e<message ends>\x1e"
    _after_key = b"\x1f<key ends>\x1f"

    def __init__(self) -> None:
        self._program = shutil.which("kcat") or shutil.which("kafkacat")

    @property
    def installed(self) -> bool:
        return self._program is not None

    def _run(self, arguments: Sequence[str | bytes], stdin: bytes = b"") -> bytes:
        assert self._program is not None
        done = subprocess.run(
            [self._program, *arguments], input=stdin, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"kcat failed: {done.stderr.decode(errors='replace')}"
        return done.stdout

    def can_write(self, message: Message) -> bool:
        return True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        partition: int = 0,
    ) -> None:
        # One run of kcat has one list of headers, and reads an empty field either as null or as empty.
        def of_one_run(message: Message) -> tuple[tuple[Header, ...], bool]:
            return message.headers, None in (message.key, message.value)

        for (headers, has_null), group in itertools.groupby(messages, of_one_run):
            arguments: list[str | bytes] = [
                "-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-z", codec,
                "-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}",
                "-X", "message.max.bytes=1048576", "-D", self._between_messages, "-K", self._after_key,
            ]  # fmt: skip
            if has_null:
                arguments.append("-Z")
            for name, value in headers:
                arguments += ["-H", name.encode() if value is None else name.encode() + b"=" + value]
            parts: list[bytes] = []
            for message in group:
                empty_not_null = b"" in (message.key, message.value)
                assert not (has_null and empty_not_null), "kcat cannot write null and empty in one message"
                parts += [message.key or b"", self._after_key, message.value or b"", self._between_messages]
            self._run(arguments, b"".join(parts))

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        printed = self._run(
            [
                "-C",
                "-b",
                bootstrap,
                "-t",
                topic,
                "-p",
                str(partition),
                "-o",
                str(offset),
                "-c",
                str(count),
                "-q",
                "-X",
                "fetch.wait.max.ms=50",
                "-f",
                "%K %S %T\\n%k%s%h\\x1e",
            ]
        )
        return list(self._parse(printed))

    def _parse(self, printed: bytes) -> list[Message]:
        messages: list[Message] = []
        position = 0
        while position < len(printed):
            end = printed.index(b"\n", position)
            key_size, value_size, timestamp = (int(number) for number in printed[position:end].split())
            position = end + 1
            key, position = self._field(printed, position, key_size)
            value, position = self._field(printed, position, value_size)
            end = printed.index(b"\x1e", position)
            messages.append(Message(key, value, self._headers(printed[position:end]), timestamp))
            position = end + 1
        return messages

    @staticmethod
    def _field(printed: bytes, position: int, size: int) -> tuple[bytes | None, int]:
        if size < 0:
            return None, position
        return printed[position : position + size], position + size

    @staticmethod
    def _headers(text: bytes) -> tuple[Header, ...]:
        headers: list[Header] = []
        for part in text.split(b",") if text else ():
            name, _, value = part.partition(b"=")
            headers.append((name.decode(), None if value == b"NULL" else value))
        return tuple(headers)


class Confluent:
    name = "confluent-kafka"
    sets_timestamps = True

    def can_write(self, message: Message) -> bool:
        return True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        partition: int = 0,
    ) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": 1_048_576,
                "linger.ms": 5,
            }
        )
        errors: list[object] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        for message in messages:
            producer.produce(
                topic,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                partition=partition,
                timestamp=message.timestamp or 0,
                on_delivery=delivered,
            )
        assert producer.flush(READ_SECONDS) == 0, "confluent-kafka has undelivered messages"
        assert not errors, errors

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
            }
        )
        messages: list[Message] = []
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + READ_SECONDS
            while len(messages) < count:
                for message in consumer.consume(count - len(messages), timeout=1.0):
                    assert message.error() is None, message.error()
                    headers = tuple((name, value) for name, value in message.headers() or ())
                    messages.append(Message(message.key(), message.value(), headers, message.timestamp()[1]))
                if time.monotonic() > deadline:
                    raise too_few(self.name, topic, len(messages), count)
        finally:
            consumer.close()
        return messages


class KafkaPython:
    name = "kafka-python"
    sets_timestamps = True

    def can_write(self, message: Message) -> bool:
        null_header = any(value is None for _name, value in message.headers)
        return (message.key, message.value) != (None, None) and not null_header

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        partition: int = 0,
    ) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=-1 if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=1_048_576,
            linger_ms=5,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    partition=partition,
                    timestamp_ms=message.timestamp,
                )
                for message in messages
            ]
            for future in sent:
                future.get(READ_SECONDS)
        finally:
            producer.close()

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=50
        )
        messages: list[Message] = []
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            deadline = time.monotonic() + READ_SECONDS
            while len(messages) < count:
                for batch in consumer.poll(timeout_ms=1000, max_records=count - len(messages)).values():
                    messages += [Message(r.key, r.value, tuple(r.headers), r.timestamp) for r in batch]
                if time.monotonic() > deadline:
                    raise too_few(self.name, topic, len(messages), count)
        finally:
            consumer.close()
        return messages


class AioKafka:
    name = "aiokafka"
    sets_timestamps = True

    def can_write(self, message: Message) -> bool:
        return (message.key, message.value) != (None, None)

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        partition: int = 0,
    ) -> None:
        from aiokafka import AIOKafkaProducer

        async def run() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=1_048_576,
                linger_ms=5,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        key=message.key,
                        value=message.value,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp,
                    )
                    for message in messages
                ]
                await asyncio.wait_for(asyncio.gather(*sent), READ_SECONDS)
            finally:
                await producer.stop()

        asyncio.run(run())

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def run() -> list[Message]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=50
            )
            await consumer.start()
            messages: list[Message] = []
            try:
                assigned = TopicPartition(topic, partition)
                consumer.assign([assigned])
                consumer.seek(assigned, offset)
                deadline = time.monotonic() + READ_SECONDS
                while len(messages) < count:
                    batches = await consumer.getmany(timeout_ms=1000, max_records=count - len(messages))
                    for batch in batches.values():
                        messages += [Message(r.key, r.value, tuple(r.headers), r.timestamp) for r in batch]
                    if time.monotonic() > deadline:
                        raise too_few(self.name, topic, len(messages), count)
            finally:
                await consumer.stop()
            return messages

        return asyncio.run(run())


def all_clients() -> list[Client]:
    """Every client that is here: kcat comes from the system and may be missing."""
    kcat = Kcat()
    clients: list[Client] = [Confluent(), KafkaPython(), AioKafka()]
    return [kcat, *clients] if kcat.installed else clients
