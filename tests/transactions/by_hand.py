"""Transactions by hand, request by request, for what no client does."""

from __future__ import annotations

import time

from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog import Admin
from tidelog.clients.admin import AlterConfigOp, ConfigResource, OpType, ResourceType
from tidelog.coordinator.transaction.records import decode_value, encode_key, encode_value
from tidelog.coordinator.transaction.state import State
from tidelog.errors import RetriableError, error_class
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch, iter_batches, read_records
from tidelog.records.partitioning import partition_for_id


def described(
    connection: RawConnection, transactional_id: str
) -> DescribeTransactionsResponse.TransactionState:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return connection.ask(request, DescribeTransactionsResponse, 0).transaction_states[0]


def _record(value: bytes) -> Record:
    """A record of this moment: brokers delete old ones half a minute after their start."""
    return Record(0, int(time.time() * 1000), None, value)


def open_transaction(
    connection: RawConnection,
    topic: str,
    *,
    transactional_id: str = "raw",
    index: int = 0,
    timeout_ms: int = 60_000,
    two_phase: bool = False,
) -> tuple[int, int]:
    """A transaction with one record; its producer."""

    def coordinator_is_there() -> bool:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        return connection.ask(request, FindCoordinatorResponse, 4).coordinators[0].error_code == 0

    eventually(coordinator_is_there, "there is a coordinator")
    version = 6 if two_phase else 5
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, enable_2pc=two_phase
    )

    def initialized() -> InitProducerIdResponse | None:
        answer = connection.ask(request, InitProducerIdResponse, version)
        return answer if answer.error_code == 0 else None

    given = eventually(initialized, "there is a producer id")
    producer = (given.producer_id, given.producer_epoch)
    added = connection.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[index])
            ],
        ),
        AddPartitionsToTxnResponse,
        3,
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    batch = build_batch(
        [_record(b"v")],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )
    produce(connection, topic, index, bytes(batch), transactional_id=transactional_id)
    return producer


def produce(
    connection: RawConnection, topic: str, index: int, batch: bytes, transactional_id: str | None = None
) -> None:
    """Write a batch. Kafka refuses it for a while, until it knows the topic or the transaction."""
    data = ProduceRequest.PartitionProduceData(index=index, records=batch)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )

    def written() -> bool:
        code = connection.ask(request, ProduceResponse, 9).responses[0].partition_responses[0].error_code
        assert code == 0 or issubclass(error_class(code), RetriableError), error_class(code)
        return code == 0

    eventually(written, "the batch is written")


def hanging_transaction(connection: RawConnection, bootstrap: str, topic: str, transactional_id: str) -> int:
    """A record of a transaction that comes after its end, as from a producer behind a slow network.

    The topic has one partition and no records. A broker that asks the coordinator about each transaction
    refuses such a record, so the check is off meanwhile. Returns the first offset of the hanging transaction.
    """
    producer_id, epoch = open_transaction(connection, topic, transactional_id=transactional_id)

    def ended() -> bool:
        answer = end(
            connection, producer_id, epoch, commit=False, transactional_id=transactional_id, version=3
        )
        return answer.error_code == 0

    eventually(ended, "the transaction is aborted")
    eventually(
        lambda: not described(connection, transactional_id).topics, "the coordinator has written its markers"
    )
    late = build_batch(
        [Record(0, 1_700_000_000_000, None, b"late")],  # far longer ago than a transaction may take
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=1,
        transactional=True,
    )
    check, broker = "transaction.partition.verification.enable", ConfigResource(ResourceType.BROKER, "")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.incremental_alter_configs({broker: [AlterConfigOp(check, "false")]})
        try:
            eventually(
                lambda: _is_taken(connection, topic, bytes(late), transactional_id),
                "the late record is taken",
            )
        finally:
            admin.incremental_alter_configs({broker: [AlterConfigOp(check, None, OpType.DELETE)]})
    return 2  # after the first record, and the marker of the abort


def _is_taken(connection: RawConnection, topic: str, batch: bytes, transactional_id: str) -> bool:
    """Whether the broker takes a batch; False until the new setting is in force."""
    try:
        produce(connection, topic, 0, batch, transactional_id)
    except AssertionError:
        return False
    return True


def write_prepared(connection: RawConnection, transactional_id: str, state: State) -> None:
    """The record that a coordinator writes first, and nothing of what it does then."""
    topic, index = "__transaction_state", partition_for_id(transactional_id, 3)
    wanted = FetchRequest.FetchTopic(
        topic=topic,
        partitions=[FetchRequest.FetchPartition(partition=index, partition_max_bytes=1 << 20)],
    )
    answer = connection.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[wanted]), FetchResponse, 11)
    data = bytes(answer.responses[0].partitions[0].records)  # type: ignore[arg-type]
    records = [
        record for at, header in iter_batches(data) for record in read_records(data, at, header=header)
    ]
    last = next(record for record in reversed(records) if record.key == encode_key(transactional_id))
    assert last.value is not None
    prepared = encode_value(decode_value(last.value)._replace(state=state))
    produce(
        connection,
        topic,
        index,
        bytes(build_batch([Record(0, last.timestamp, encode_key(transactional_id), prepared)])),
    )


def end(
    connection: RawConnection,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    transactional_id: str = "raw",
    version: int = 5,
) -> EndTxnResponse:
    return connection.ask(
        EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        ),
        EndTxnResponse,
        version,
    )
