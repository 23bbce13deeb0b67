"""Encodes the answer to a Fetch: bytes, and between them slices of the log files.

The encoding is that of a `FetchResponse`, without the objects. As in Kafka, consecutive partitions of a topic
share one entry of the topic.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from tidelog.cluster.fetch_session import FetchedPartition
from tidelog.errors import FencedLeaderEpoch, NotLeaderOrFollower
from tidelog.network.frames import SIZE
from tidelog.network.output import COPIED_BYTES
from tidelog.network.request import Part
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.wire import write_tags, write_uvarint
from tidelog.server.apis.current_leader import CurrentLeaders, LeaderNode
from tidelog.slices import Slices

SESSIONS_FROM: Final = 7
LOG_START_FROM: Final = 5
PREFERRED_REPLICA_FROM: Final = 11
TOPIC_IDS_FROM: Final = 13

PARTITIONS_PER_SLICE: Final = 200

NULL: Final = -1
NO_TAGS: Final = b"\0"
DIVERGING_TAG: Final = 0
DIVERGING: Final = struct.Struct(">iqx")
CURRENT_LEADER_TAG: Final = 1
CURRENT_LEADER: Final = struct.Struct(">iix")
NODE_ENDPOINTS_TAG: Final = 0
TRANSACTION: Final = struct.Struct(">qq")
COUNT: Final = struct.Struct(">i")
SHORT: Final = struct.Struct(">h")
HEAD: Final = struct.Struct(">ihi")


@cache
def writer_for(version: int) -> FetchAnswerWriter:
    return FetchAnswerWriter(version)


class FetchAnswerWriter:
    """Encodes answers of one version."""

    __slots__ = (
        "_fields",
        "_flexible",
        "_has_log_start",
        "_has_preferred_replica",
        "_has_session",
        "_names_by_id",
        "_of_one",
        "_one",
        "_plain",
        "_plain_size",
        "_tail",
        "_transaction_size",
    )

    def __init__(self, version: int) -> None:
        self._flexible = FetchResponse.FLEXIBLE.has(version)
        self._has_session = version >= SESSIONS_FROM
        self._has_log_start = version >= LOG_START_FROM
        self._has_preferred_replica = version >= PREFERRED_REPLICA_FROM
        self._names_by_id = version >= TOPIC_IDS_FROM
        # Partition, error, high watermark, last stable offset, log start offset.
        fields = ">ihqqq" if self._has_log_start else ">ihqq"
        self._fields = struct.Struct(fields).pack
        # The same fields, a null or empty list of transactions, and the preferred replica.
        count = "b" if self._flexible else "i"
        plain = struct.Struct(fields + count + ("i" if self._has_preferred_replica else ""))
        self._plain = plain.pack
        # With an empty list of transactions and without tags; the size of the records comes on top.
        self._plain_size = plain.size + self._flexible
        self._transaction_size = TRANSACTION.size + self._flexible
        self._one = self._count(1)
        # All before the size of the records in an answer of one partition whose topic has an id.
        self._of_one = struct.Struct(">ihi" "B16sB" "ihqqqbi").pack
        self._tail = 3 * NO_TAGS if self._flexible else b""  # of a partition, its topic and the answer

    def write(
        self,
        header: bytes,
        error: int,
        session_id: int,
        answers: list[FetchedPartition],
        leaders: CurrentLeaders | None = None,
    ) -> list[Part]:
        """The parts of an answer, with the response header in front.

        `leaders` finds the leaders of partitions that this broker does not lead.
        """
        if len(answers) == 1 and answers[0].error is None and answers[0].diverging is None:
            return self._write_one(header, error, session_id, answers[0])
        parts: list[Part] = []
        out = [header, self._head(error, session_id)]
        runs = _runs(answers)
        out.append(self._count(len(runs)))
        for run in runs:
            out.append(self._topic(run[0].wanted.topic))
            out.append(self._count(len(run)))
            self._add(run, out, parts, leaders)
            self._end(out)
        self._end_answer(out, leaders)
        if out:
            parts.append(b"".join(out))
        return parts

    def frame_of_one(
        self, header: bytes, error: int, session_id: int, answer: FetchedPartition
    ) -> bytes | None:
        """The answer of a single partition with few records, with its size in front.

        None if it is larger, or has an error, or if the page cache does not have all of its records.
        """
        records = answer.records
        if (
            records is None
            or records.size > COPIED_BYTES
            or answer.error is not None
            or answer.diverging is not None
        ):
            return None
        try:
            data = records.read_cached()
        except OSError:
            return None
        if data is None or len(data) != records.size:
            return None
        before = self._before_records(error, session_id, answer, records.size)
        size = len(header) + len(before) + records.size + len(self._tail)
        return b"".join((SIZE.pack(size), header, before, data, self._tail))

    def _before_records(self, error: int, session_id: int, answer: FetchedPartition, size: int) -> bytes:
        """An answer of a single partition, from behind the header up to its records."""
        wanted, aborted = answer.wanted, answer.aborted
        if self._names_by_id and not aborted and answer.error is None:
            return self._of_one(
                0, error, session_id,
                2, wanted.topic, 2,
                wanted.partition, 0,
                answer.high_watermark, answer.last_stable_offset, answer.log_start_offset,
                0 if aborted is None else 1, answer.preferred_replica,
            ) + write_uvarint(size + 1)  # fmt: skip
        return b"".join(
            (
                self._head(error, session_id),
                self._one,
                self._topic(wanted.topic),
                self._one,
                self._partition(answer, size),
            )
        )

    def _write_one(self, header: bytes, error: int, session_id: int, answer: FetchedPartition) -> list[Part]:
        """`write` for a single partition: the answer to most fetches of a session."""
        records = answer.records
        size = 0 if records is None else records.size
        head = header + self._before_records(error, session_id, answer, size)
        if records is None:
            return [head + self._tail]
        return [head, records, self._tail] if self._tail else [head, records]

    def size(self, answers: list[FetchedPartition]) -> int:
        """How many bytes `write` gives without a header and without leaders; it encodes nothing."""
        flexible = self._flexible
        total = len(answers) * self._plain_size
        topics, topic, of_topic = 0, None, 0
        for answer in answers:
            if answer.wanted.topic != topic:
                total += self._count_size(of_topic) if topics else 0
                topic = answer.wanted.topic
                topics, of_topic = topics + 1, 0
                total += self._topic_size(topic) + flexible
            of_topic += 1
            records, aborted = answer.records, answer.aborted
            size = 0 if records is None else records.size
            total += size + self._count_size(size)
            if aborted:
                total += len(aborted) * self._transaction_size
                total += self._count_size(len(aborted)) - self._count_size(0)
            if flexible and answer.diverging is not None:
                total += len(_diverging(*answer.diverging)) - len(NO_TAGS)
        total += self._count_size(of_topic) if topics else 0
        return total + (HEAD.size if self._has_session else COUNT.size) + self._count_size(topics) + flexible

    def write_in_slices(
        self,
        header: bytes,
        error: int,
        session_id: int,
        answers: list[FetchedPartition],
        leaders: CurrentLeaders | None = None,
    ) -> Slices[list[Part]]:
        """`write` for many partitions, in slices between other requests."""
        parts: list[Part] = []
        out = [header, self._head(error, session_id)]
        runs = _runs(answers)
        out.append(self._count(len(runs)))
        for run in runs:
            out.append(self._topic(run[0].wanted.topic))
            out.append(self._count(len(run)))
            for begin in range(0, len(run), PARTITIONS_PER_SLICE):
                self._add(run[begin : begin + PARTITIONS_PER_SLICE], out, parts, leaders)
                yield
            self._end(out)
        self._end_answer(out, leaders)
        if out:
            parts.append(b"".join(out))
        return parts

    def _add(
        self,
        answers: list[FetchedPartition],
        out: list[bytes],
        parts: list[Part],
        leaders: CurrentLeaders | None,
    ) -> None:
        """Add partitions to `parts`; `out` holds the bytes after the last part."""
        for answer in answers:
            records = answer.records
            out.append(self._partition(answer, 0 if records is None else records.size))
            if records is not None:
                parts.append(b"".join(out))
                parts.append(records)
                out.clear()
            if self._flexible:
                out.append(NO_TAGS if answer.diverging is None else _diverging(*answer.diverging))
                if leaders is not None and is_led_elsewhere(answer):
                    out[-1] = _current_leader(*leaders.of(answer.wanted.topic, answer.wanted.partition))

    def _end_answer(self, out: list[bytes], leaders: CurrentLeaders | None) -> None:
        if leaders is not None and leaders.nodes:
            out.append(_node_endpoints(leaders.nodes))
        else:
            self._end(out)

    def _end(self, out: list[bytes]) -> None:
        if self._flexible:
            out.append(NO_TAGS)

    def _head(self, error: int, session_id: int) -> bytes:
        """The throttle time and, in versions with sessions, the error and the session id."""
        if self._has_session:
            return HEAD.pack(0, error, session_id)
        return COUNT.pack(0)

    def _count(self, number: int) -> bytes:
        return write_uvarint(number + 1) if self._flexible else COUNT.pack(number)

    def _count_size(self, number: int) -> int:
        """The size of `_count`: seven bits of the number plus one in each byte."""
        return ((number + 1).bit_length() + 6) // 7 if self._flexible else COUNT.size

    def _topic_size(self, topic: str | bytes) -> int:
        if isinstance(topic, bytes):
            return len(topic)
        name = len(topic) if topic.isascii() else len(topic.encode())
        return name + (self._count_size(name) if self._flexible else SHORT.size)

    def _topic(self, topic: str | bytes) -> bytes:
        if isinstance(topic, bytes):
            return topic
        name = topic.encode()
        return (write_uvarint(len(name) + 1) if self._flexible else SHORT.pack(len(name))) + name

    def _partition(self, answer: FetchedPartition, size: int) -> bytes:
        """The fields of a partition before its records, including the size of the records."""
        index = answer.wanted.partition
        code = 0 if answer.error is None else answer.error.code
        aborted = answer.aborted
        watermarks: tuple[int, ...] = (answer.high_watermark, answer.last_stable_offset)
        if self._has_log_start:
            watermarks = (*watermarks, answer.log_start_offset)
        if aborted:
            head = self._fields(index, code, *watermarks) + self._transactions(aborted)
            if self._has_preferred_replica:
                head += COUNT.pack(answer.preferred_replica)
        else:
            count = (NULL if aborted is None else 0) + self._flexible
            if self._has_preferred_replica:
                head = self._plain(index, code, *watermarks, count, answer.preferred_replica)
            else:
                head = self._plain(index, code, *watermarks, count)
        return head + self._count(size)

    def _transactions(self, aborted: list[tuple[int, int]]) -> bytes:
        end = NO_TAGS if self._flexible else b""
        return self._count(len(aborted)) + b"".join(TRANSACTION.pack(*entry) + end for entry in aborted)


def _runs(answers: list[FetchedPartition]) -> list[list[FetchedPartition]]:
    """The answers in order, in runs of one topic. A topic that occurs again later starts another run."""
    runs: list[list[FetchedPartition]] = []
    topic: str | bytes | None = None
    for answer in answers:
        if answer.wanted.topic != topic:
            topic = answer.wanted.topic
            runs.append([])
        runs[-1].append(answer)
    return runs


def _diverging(epoch: int, end_offset: int) -> bytes:
    return write_tags({DIVERGING_TAG: DIVERGING.pack(epoch, end_offset)})


def is_led_elsewhere(answer: FetchedPartition) -> bool:
    """Whether the fetcher should ask another leader, or the same with another epoch."""
    return isinstance(answer.error, NotLeaderOrFollower | FencedLeaderEpoch)


def _current_leader(leader: int, epoch: int) -> bytes:
    return write_tags({CURRENT_LEADER_TAG: CURRENT_LEADER.pack(leader, epoch)})


def _node_endpoints(nodes: list[LeaderNode]) -> bytes:
    out = [write_uvarint(len(nodes) + 1)]
    for node in nodes:
        out += [COUNT.pack(node.broker_id), _compact(node.host), COUNT.pack(node.port)]
        out += [NO_TAGS if node.rack is None else _compact(node.rack), NO_TAGS]
    return write_tags({NODE_ENDPOINTS_TAG: b"".join(out)})


def _compact(text: str) -> bytes:
    data = text.encode()
    return write_uvarint(len(data) + 1) + data
