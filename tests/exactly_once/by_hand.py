"""A transactional producer made of plain requests, of both protocols, for what no client does: two-phase
commits, requests that come late or twice, and answers that are looked at one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.records.batch import Record, build_batch
from tidelog.simulation.checks.transaction_history import Partition

R = TypeVar("R", bound=Message)
T = TypeVar("T")

GONE = (ConnectionClosed, NoAnswer, OSError)
NOT_NOW = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
PATIENCE = 40.0


class Refused(Exception):
    """The broker said no: what was asked for has not happened and will not."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


def wait_until_ended(bootstrap: str, transactional_id: str, timeout: float = 30.0) -> None:
    """Until no transaction of an id is open or about to end."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def has_ended() -> bool:
        with routed_connection(bootstrap) as connection:
            answer = connection.ask(request, DescribeTransactionsResponse, 0)
        state = answer.transaction_states[0].transaction_state
        return state == "Empty" or state.startswith("Complete")

    eventually(has_ended, f"no transaction of {transactional_id} is open", timeout, 0.02)


class HandProducer:
    """`bumps` is the newer protocol: partitions are added by the produce itself, each end raises the epoch.

    Methods named `ask_` send once and give the answer; the others repeat what can be repeated, as a client
    does, and raise `Refused`.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        bumps: bool = True,
        two_phase: bool = False,
        timeout_ms: int = 60_000,
        answer_seconds: float = 10.0,
    ) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.bumps = bumps
        self.two_phase = two_phase
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[Partition, int] = {}
        self.added: set[Partition] = set()
        self._answer_seconds = answer_seconds
        self._connection: RawConnection | None = None

    # -- connections -------------------------------------------------------------------------------

    @property
    def connection(self) -> RawConnection:
        if self._connection is None:
            self._connection = routed_connection(self.bootstrap, timeout=self._answer_seconds)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repeat(self, ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
        answer = self._answer(ask, code_of)
        if code_of(answer):
            raise Refused(code_of(answer))
        return answer

    def _answer(self, ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
        """Ask until an answer comes that tells more than to come again."""

        def answered() -> tuple[T] | None:
            try:
                answer = ask()
            except GONE:
                self.close()
                return None
            return None if code_of(answer) in NOT_NOW else (answer,)

        return eventually(answered, f"an answer for {self.transactional_id}", PATIENCE, 0.02)[0]

    # -- requests ----------------------------------------------------------------------------------

    def init(self, *, keep: bool = False) -> tuple[int, int] | None:
        """A new epoch; the producer id and epoch of the transaction that was kept."""
        self.find_coordinator()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            enable_2pc=self.two_phase,
            keep_prepared_txn=keep,
        )
        version = 6 if self.two_phase else 5
        answer = self._repeat(
            lambda: self.connection.ask(request, InitProducerIdResponse, version), lambda a: a.error_code
        )
        self._take(answer.producer_id, answer.producer_epoch)
        if answer.ongoing_txn_producer_id < 0:
            return None
        return answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch

    def find_coordinator(self) -> None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        self._repeat(
            lambda: self.connection.ask(request, FindCoordinatorResponse, 4),
            lambda answer: answer.coordinators[0].error_code,
        )

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def ask_add(self, partition: Partition) -> int:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=partition[0], partitions=[partition[1]]
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        answer = self.connection.ask(request, AddPartitionsToTxnResponse, 3)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def produce_request(
        self, partition: Partition, values: Sequence[str], sequence: int, epoch: int | None = None
    ) -> tuple[ProduceRequest, int]:
        """The request and its version."""
        now_ms = int(time.time() * 1000)
        batch = build_batch(
            [Record(at, now_ms, None, value.encode()) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=partition[1], records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(name=partition[0], partition_data=[data])
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=5000, topic_data=[topic]
        )
        return request, 12 if self.bumps else 11

    def ask_produce(
        self, partition: Partition, values: Sequence[str], sequence: int, epoch: int | None = None
    ) -> tuple[int, int]:
        """Error and offset."""
        request, version = self.produce_request(partition, values, sequence, epoch)
        answer = self.connection.ask(request, ProduceResponse, version).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    def produce(
        self, partition: Partition, values: Sequence[str], sequence: int, epoch: int | None = None
    ) -> ErrorCode:
        """What the broker says to a batch, once it says something."""
        code, _ = self._answer(
            lambda: self.ask_produce(partition, values, sequence, epoch), lambda answer: answer[0]
        )
        return ErrorCode(code)

    def write(self, partition: Partition, values: Sequence[str]) -> int:
        """The offset of the first of them."""
        if not self.bumps and partition not in self.added:
            self._repeat(lambda: self.ask_add(partition), lambda code: code)
            self.added.add(partition)
        sequence = self.sequences.get(partition, 0)
        _, offset = self._repeat(
            lambda: self.ask_produce(partition, values, sequence), lambda answer: answer[0]
        )
        self.sequences[partition] = sequence + len(values)
        return offset

    def commit_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        if not self.bumps:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            self._repeat(
                lambda: self.connection.ask(add, AddOffsetsToTxnResponse, 3), lambda answer: answer.error_code
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
                for (topic, index), offset in offsets.items()
            ],
        )
        version = 5 if self.bumps else 4
        self._repeat(
            lambda: self.connection.ask(request, TxnOffsetCommitResponse, version),
            lambda answer: max(p.error_code for topic in answer.topics for p in topic.partitions),
        )

    def end_request(self, commit: bool) -> tuple[EndTxnRequest, int]:
        """The request for the transaction under way, and its version."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return request, 5 if self.bumps else 4

    def wait_until_complete(self) -> None:
        """Until the markers of the last transaction are written."""
        wait_until_ended(self.bootstrap, self.transactional_id)

    def ask_end(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        return self.connection.ask(request, EndTxnResponse, version)

    def end(self, *, commit: bool) -> None:
        request, version = self.end_request(commit)
        answer = self._repeat(lambda: self.ask_end(request, version), lambda answer: answer.error_code)
        self.added.clear()
        if self.bumps:
            self._take(answer.producer_id, answer.producer_epoch)
