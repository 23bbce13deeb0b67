"""An OffsetCommit or TxnOffsetCommit request: its existing partitions, its records and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.coordinator.group.group import CommitCheck
from tidelog.coordinator.group.records import NO_TIMESTAMP, offset_key, offset_value
from tidelog.coordinator.runtime import NewRecord
from tidelog.errors import ErrorCode, KafkaError
from tidelog.metadata.state import TopicState
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

RequestPartition = (
    OffsetCommitRequest.OffsetCommitRequestPartition | TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
)


class Commit:
    """A request to commit offsets: its existing partitions, and the answer for each."""

    __slots__ = ("answers", "commit_timestamp", "expire_timestamp", "group_id", "wanted")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.commit_timestamp = self.expire_timestamp = NO_TIMESTAMP
        # By topic name or id, as in the request. Partitions that do not exist are first.
        self.answers: dict[str | bytes, list[tuple[int, int]]] = {}
        self.wanted: list[tuple[str | bytes, TopicState, RequestPartition]] = []

    def take(
        self,
        topic: str | bytes,
        state: TopicState | None,
        partitions: Sequence[RequestPartition],
        error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ) -> None:
        """Add the partitions of a topic. Partitions that do not exist get `error`."""
        for partition in partitions:
            if state is None:
                self.answer(topic, partition.partition_index, error)
            elif partition.partition_index not in state.partitions:
                self.answer(topic, partition.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                self.wanted.append((topic, state, partition))

    def answer(self, topic: str | bytes, partition: int, code: int) -> None:
        answers = self.answers.get(topic)
        if answers is None:
            self.answers[topic] = [(partition, code)]
        else:
            answers.append((partition, code))

    def refuse(self, error: KafkaError) -> None:
        """Answer all remaining partitions with the same error."""
        for topic, _, partition in self.wanted:
            self.answer(topic, partition.partition_index, error.code)

    def records(
        self, longest_metadata: int, check: CommitCheck | None, *, with_topic_ids: bool = True
    ) -> tuple[list[NewRecord], list[int]]:
        """The records to append, and the error code of each partition.

        Without topic ids, the records have the format of Kafka 3.9.
        """
        records: list[NewRecord] = []
        codes: list[int] = []
        for _, state, partition in self.wanted:
            metadata = partition.committed_metadata or ""
            if len(metadata) > longest_metadata:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            if check is not None:
                check(state.topic_id, partition.partition_index)
            codes.append(0)
            value = offset_value(
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                self.commit_timestamp,
                self.expire_timestamp,
                state.topic_id if with_topic_ids else None,
            )
            key = offset_key(self.group_id, state.name, partition.partition_index)
            records.append(NewRecord(key, value))
        return records, codes

    def accept(self, codes: list[int]) -> None:
        for (topic, _, partition), code in zip(self.wanted, codes, strict=True):
            self.answer(topic, partition.partition_index, code)


def commit_answer(commit: Commit) -> OffsetCommitResponse:
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = []
    for topic, answers in commit.answers.items():
        partitions = [
            OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=partition, error_code=code)
            for partition, code in answers
        ]
        if isinstance(topic, bytes):
            topic_answer = OffsetCommitResponse.OffsetCommitResponseTopic(
                topic_id=topic, partitions=partitions
            )
        else:
            topic_answer = OffsetCommitResponse.OffsetCommitResponseTopic(name=topic, partitions=partitions)
        topics.append(topic_answer)
    return OffsetCommitResponse(topics=topics)


def txn_commit_answer(commit: Commit) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition, error_code=code
                    )
                    for partition, code in answers
                ],
            )
            for topic, answers in commit.answers.items()
            if isinstance(topic, str)
        ]
    )
