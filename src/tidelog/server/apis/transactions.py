"""InitProducerId (22) v0-5 (v6), AddPartitionsToTxn (24) v0-5, AddOffsetsToTxn (25) v0-4, EndTxn (26) v0-5,
WriteTxnMarkers (27) v1-2, DescribeTransactions (65) v0 and ListTransactions (66) v0-2.

- InitProducerId without a transactional id gives a new producer id with epoch 0. With one, it raises the
  epoch, which fences producers with the previous epoch. It aborts an open transaction, and answers
  CONCURRENT_TRANSACTIONS until the abort is done. v3 has the current id and epoch of the producer; one
  without the other is INVALID_REQUEST. v6 is served with transaction.two.phase.commit.enable. It has
  Enable2Pc (the transaction has no time-out) and KeepPreparedTxn (the open transaction stays, and the answer
  has its producer id and epoch).
- AddPartitionsToTxn adds all partitions or none: if one is unknown, the others are
  OPERATION_NOT_ATTEMPTED. Brokers send v4 and later, for several ids at once, or only to verify.
- EndTxn answers when the decision to commit or abort is durable. v5 raises the epoch with every end, and
  answers with the new epoch.
- Clients before v4 of InitProducerId, and before v2 of the other APIs, do not know PRODUCER_FENCED: they get
  INVALID_PRODUCER_EPOCH.
- A transactional id needs WRITE (TRANSACTIONAL_ID_AUTHORIZATION_FAILED), to be described DESCRIBE, and
  TWO_PHASE_COMMIT for Enable2Pc. A producer without one needs IDEMPOTENT_WRITE on the cluster or WRITE on any
  topic. AddPartitionsToTxn needs WRITE on the topics, AddOffsetsToTxn READ on the group. Brokers need
  CLUSTER_ACTION for AddPartitionsToTxn v4 and, or else ALTER, for WriteTxnMarkers.
- WriteTxnMarkers ends transactions of producers in partitions that this broker leads.
- ListTransactions filters by state, producer id, duration (v1) and a pattern of the id (v2, RE2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.coordinator.group.patterns import compiled
from tidelog.coordinator.runtime import partition_count
from tidelog.coordinator.transaction.coordinator import Initialized
from tidelog.coordinator.transaction.markers import GROUP_TOPIC, Marker
from tidelog.coordinator.transaction.state import (
    CLASSIC,
    EPOCH_BUMP,
    TITLES,
    Metadata,
    ProducerIdAndEpoch,
    State,
)
from tidelog.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidProducerEpoch,
    KafkaError,
    OperationNotAttempted,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
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
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tidelog.records.partitioning import partition_for_id
from tidelog.server.apis.api import Answer, Api
from tidelog.server.apis.authorization import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    DENIED,
    DESCRIBE,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    TWO_PHASE_COMMIT,
    WRITE,
    allowed_names,
    check_cluster,
    is_allowed,
    is_allowed_on_any,
)
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped

if TYPE_CHECKING:
    from tidelog.protocol.message import Message

_PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult

# From these versions on clients know PRODUCER_FENCED.
INIT_KNOWS_FENCED, OTHERS_KNOW_FENCED = 4, 2
# From EndTxn v5 on clients expect a new epoch with every end. Brokers send AddPartitionsToTxn v4 and later.
END_BUMPS, ADD_COMES_FROM_BROKERS = 5, 4
MARKER_SENDER = "-txn-marker-sender"
"""The end of the client id with which coordinators send WriteTxnMarkers."""


def _answer(services: Services, request: Request) -> Callable[[Message], None]:
    def answer(message: Message) -> None:
        services.respond(request, message)

    return answer


def _code(error: KafkaError, version: int, knows_fenced: int = OTHERS_KNOW_FENCED) -> int:
    if isinstance(error, ProducerFenced) and version < knows_fenced:
        return InvalidProducerEpoch.code
    return error.code


# -- InitProducerId --------------------------------------------------------------------------------


def init_producer_id(services: Services, request: Request, body: InitProducerIdRequest) -> None:
    answer = _answer(services, request)

    def failed(error: KafkaError) -> None:
        code = _code(error, request.api_version, INIT_KNOWS_FENCED)
        answer(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))

    def initialized(result: Initialized) -> None:
        message = InitProducerIdResponse(
            producer_id=result.producer.producer_id, producer_epoch=result.producer.epoch
        )
        if result.ongoing is not None:
            message.ongoing_txn_producer_id = result.ongoing.producer_id
            message.ongoing_txn_producer_epoch = result.ongoing.epoch
        answer(message)

    if services.authorizer is not None:
        denied = _denied_producer(services, request, body)
        if denied is not None:
            failed(denied)
            return
    expected = None
    if (body.producer_id == -1) != (body.producer_epoch == -1):
        answer(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1))
        return
    if body.producer_id != -1:
        expected = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    if body.transactional_id is None:
        services.producer_ids.request(
            lambda producer_id: initialized(Initialized(ProducerIdAndEpoch(producer_id, 0))), failed
        )
    else:
        services.transactions.init_producer_id(
            body.transactional_id,
            body.transaction_timeout_ms,
            expected,
            initialized,
            failed,
            enable_two_phase=body.enable_2pc,
            keep_prepared=body.keep_prepared_txn,
        )
    if not request.done:
        request.waiting()


def _denied_producer(services: Services, request: Request, body: InitProducerIdRequest) -> KafkaError | None:
    """The error of a producer that may not use its transactional id, or may write nowhere."""
    name = body.transactional_id
    if name is not None:
        if not is_allowed(services, request, WRITE, TRANSACTIONAL_ID, name) or (
            body.enable_2pc and not is_allowed(services, request, TWO_PHASE_COMMIT, TRANSACTIONAL_ID, name)
        ):
            return TransactionalIdAuthorizationFailed(DENIED)
    elif not (
        is_allowed(services, request, IDEMPOTENT_WRITE, CLUSTER, tell_denied=False)
        or is_allowed_on_any(services, request, WRITE, TOPIC)
    ):
        return ClusterAuthorizationFailed(DENIED)
    return None


# -- AddPartitionsToTxn and AddOffsetsToTxn --------------------------------------------------------


def add_partitions_to_txn(services: Services, request: Request, body: AddPartitionsToTxnRequest) -> Answer:
    if request.api_version >= ADD_COMES_FROM_BROKERS:
        check_cluster(services, request, CLUSTER_ACTION)
        return _add_for_brokers(services, request, body)

    def done(result: _TransactionResult) -> None:
        services.respond(
            request, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)
        )

    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=body.v3_and_below_transactional_id,
        producer_id=body.v3_and_below_producer_id,
        producer_epoch=body.v3_and_below_producer_epoch,
        topics=body.v3_and_below_topics,
    )
    _add(services, request, transaction, done)
    if not request.done:
        request.waiting()
    return None


def _add_for_brokers(
    services: Services, request: Request, body: AddPartitionsToTxnRequest
) -> Slices[AddPartitionsToTxnResponse | None]:
    if not body.transactions:
        return AddPartitionsToTxnResponse()
    results: list[_TransactionResult] = []

    def done(result: _TransactionResult) -> None:
        results.append(result)
        if len(results) == len(body.transactions):
            services.respond(request, AddPartitionsToTxnResponse(results_by_transaction=results))

    for transaction in body.transactions:
        _add(services, request, transaction, done)
        yield
    if not request.done:
        request.waiting()
    return None


def _add(
    services: Services,
    request: Request,
    transaction: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
    done: Callable[[_TransactionResult], None],
) -> None:
    def tell(error_of: Callable[[PartitionKey], KafkaError | None]) -> None:
        done(
            transaction_result(
                transaction.transactional_id, transaction.topics, error_of, request.api_version
            )
        )

    topics = services.metadata.snapshot.topics
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    allowed = None
    if services.authorizer is not None and request.api_version < ADD_COMES_FROM_BROKERS:
        if not is_allowed(services, request, WRITE, TRANSACTIONAL_ID, transaction.transactional_id):
            tell(lambda _: TransactionalIdAuthorizationFailed())
            return
        names = [topic.name for topic in transaction.topics]
        allowed = allowed_names(services, request, WRITE, TOPIC, names)
    errors: dict[PartitionKey, KafkaError] = {}
    for topic, index in partitions:
        if allowed is not None and topic not in allowed:
            errors[topic, index] = TopicAuthorizationFailed()
        elif topic not in topics or index not in topics[topic].partitions:
            errors[topic, index] = UnknownTopicOrPartition()
    if errors:
        tell(lambda partition: errors.get(partition) or OperationNotAttempted())
        return
    coordinator = services.transactions
    wanted = frozenset(partitions)
    if transaction.verify_only:
        coordinator.verify_partitions(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            wanted,
            lambda errors: tell(errors.get),
        )
        return
    coordinator.add_partitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        wanted,
        EPOCH_BUMP if request.api_version >= ADD_COMES_FROM_BROKERS else CLASSIC,
        lambda error: tell(lambda _: error),
    )


def transaction_result(
    transactional_id: str,
    wanted: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic],
    error_of: Callable[[PartitionKey], KafkaError | None],
    version: int,
) -> _TransactionResult:
    """The result of each partition, in the order of the request."""
    topics = []
    for topic in wanted:
        results = []
        for index in topic.partitions:
            error = error_of((topic.name, index))
            code = 0 if error is None else _code(error, version)
            results.append(_PartitionResult(partition_index=index, partition_error_code=code))
        topics.append(_TopicResult(name=topic.name, results_by_partition=results))
    return _TransactionResult(transactional_id=transactional_id, topic_results=topics)


def add_offsets_to_txn(services: Services, request: Request, body: AddOffsetsToTxnRequest) -> None:
    def done(error: KafkaError | None) -> None:
        code = 0 if error is None else _code(error, request.api_version)
        services.respond(request, AddOffsetsToTxnResponse(error_code=code))

    if services.authorizer is not None:
        if not is_allowed(services, request, WRITE, TRANSACTIONAL_ID, body.transactional_id):
            done(TransactionalIdAuthorizationFailed(DENIED))
            return
        if not is_allowed(services, request, READ, GROUP, body.group_id):
            done(GroupAuthorizationFailed(DENIED))
            return
    known = services.metadata.snapshot.topics.get(GROUP_TOPIC)
    settings = services.groups.settings
    count = settings.offsets_topic_num_partitions if known is None else partition_count(known)
    partition = partition_for_id(body.group_id, count)
    services.transactions.add_partitions(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        frozenset({(GROUP_TOPIC, partition)}),
        CLASSIC,
        done,
    )
    if not request.done:
        request.waiting()


# -- EndTxn and WriteTxnMarkers --------------------------------------------------------------------


def end_txn(services: Services, request: Request, body: EndTxnRequest) -> None:
    answer = _answer(services, request)

    def failed(error: KafkaError) -> None:
        answer(EndTxnResponse(error_code=_code(error, request.api_version)))

    if services.authorizer is not None and not is_allowed(
        services, request, WRITE, TRANSACTIONAL_ID, body.transactional_id
    ):
        failed(TransactionalIdAuthorizationFailed(DENIED))
        return
    services.transactions.end_transaction(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        commit=body.committed,
        client_version=EPOCH_BUMP if request.api_version >= END_BUMPS else CLASSIC,
        done=lambda next_: answer(EndTxnResponse(producer_id=next_.producer_id, producer_epoch=next_.epoch)),
        failed=failed,
    )
    if not request.done:
        request.waiting()


def write_txn_markers(
    services: Services, request: Request, body: WriteTxnMarkersRequest
) -> Slices[WriteTxnMarkersResponse | None]:
    unfinished = sum(len(topic.partition_indexes) for marker in body.markers for topic in marker.topics)
    outcomes: list[dict[PartitionKey, int]] = [{} for _ in body.markers]

    def finish() -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                _marker_result(marker, codes) for marker, codes in zip(body.markers, outcomes, strict=True)
            ]
        )

    def write(slot: int, marker: WriteTxnMarkersRequest.WritableTxnMarker) -> None:
        def done(partition: PartitionKey, error: KafkaError | None) -> None:
            nonlocal unfinished
            outcomes[slot][partition] = 0 if error is None else error.code
            unfinished -= 1
            if not unfinished:
                if is_audited:
                    _audit_markers(services, request, body, outcomes)
                services.respond(request, finish())

        services.transactions.local_markers.write(
            Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.transaction_result,
                marker.transaction_version,
            ),
            [(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
            done,
        )

    may_alter = is_allowed(services, request, ALTER, CLUSTER, tell_denied=False)
    may_act_as_broker = is_allowed(services, request, CLUSTER_ACTION, CLUSTER, tell_denied=not may_alter)
    # Only an administrator's markers are a change of its own. A coordinator's end a client's transaction.
    is_audited = services.audit.is_on and not (may_act_as_broker and _is_of_coordinator(services, request))
    if not (may_alter or may_act_as_broker):
        code = ClusterAuthorizationFailed.code
        for marker, codes in zip(body.markers, outcomes, strict=True):
            for topic in marker.topics:
                codes.update(dict.fromkeys([(topic.name, index) for index in topic.partition_indexes], code))
        return finish()
    if not unfinished:
        return finish()
    for slot, marker in enumerate(body.markers):
        write(slot, marker)
        yield
    if not request.done:
        request.waiting()
    return None


def _is_of_coordinator(services: Services, request: Request) -> bool:
    """Whether the markers are of a transaction that a coordinator ends, ours or Kafka's."""
    cluster = services.cluster
    client_id = request.client_id or ""
    return cluster is not None and request.listener in cluster.listeners and client_id.endswith(MARKER_SENDER)


def _audit_markers(
    services: Services,
    request: Request,
    body: WriteTxnMarkersRequest,
    outcomes: list[dict[PartitionKey, int]],
) -> None:
    for marker, codes in zip(body.markers, outcomes, strict=True):
        ended = [partition for partition, code in codes.items() if not code]
        how = "committed" if marker.transaction_result else "aborted"
        change = f"transaction of producer {marker.producer_id} {how}"
        services.audit.changed_partitions(request, ended, change)


def _marker_result(
    marker: WriteTxnMarkersRequest.WritableTxnMarker, codes: dict[PartitionKey, int]
) -> WriteTxnMarkersResponse.WritableTxnMarkerResult:
    return WriteTxnMarkersResponse.WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=codes[topic.name, index]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


# -- DescribeTransactions and ListTransactions -----------------------------------------------------


def describe_transactions(
    services: Services, request: Request, body: DescribeTransactionsRequest
) -> Slices[DescribeTransactionsResponse]:
    states = yield from mapped(partial(_described, services, request), dict.fromkeys(body.transactional_ids))
    return DescribeTransactionsResponse(transaction_states=states)


def _described(
    services: Services, request: Request, transactional_id: str
) -> DescribeTransactionsResponse.TransactionState:
    answer = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
    try:
        if services.authorizer is not None and not is_allowed(
            services, request, DESCRIBE, TRANSACTIONAL_ID, transactional_id
        ):
            raise TransactionalIdAuthorizationFailed(DENIED)
        metadata = services.transactions.describe(transactional_id)
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    answer.transaction_state = metadata.state.title
    answer.transaction_timeout_ms = metadata.timeout_ms
    answer.transaction_start_time_ms = metadata.start_ms
    answer.producer_id = metadata.producer_id
    answer.producer_epoch = metadata.producer_epoch
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(index)
    if services.authorizer is not None:
        visible = allowed_names(services, request, DESCRIBE, TOPIC, topics, tell_denied=False)
        topics = {topic: indexes for topic, indexes in topics.items() if topic in visible}
    answer.topics = [
        DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
        for topic, indexes in topics.items()
    ]
    return answer


def list_transactions(
    services: Services, request: Request, body: ListTransactionsRequest
) -> Slices[ListTransactionsResponse]:
    coordinator = services.transactions
    if coordinator.runtime.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {TITLES[name] for name in body.state_filters if name in TITLES}
    ids = set(body.producer_id_filters)
    now_ms = services.clock.ms()
    matches = _pattern(body.transactional_id_pattern)

    def is_wanted(transactional_id: str, metadata: Metadata) -> bool:
        return (
            (not ids or metadata.producer_id in ids)
            and (not body.state_filters or metadata.state in states)
            and (body.duration_filter < 0 or now_ms - metadata.start_ms > body.duration_filter)
            and matches(transactional_id)
            and (
                services.authorizer is None
                or is_allowed(
                    services, request, DESCRIBE, TRANSACTIONAL_ID, transactional_id, tell_denied=False
                )
            )
        )

    answer = ListTransactionsResponse(
        unknown_state_filters=[name for name in body.state_filters if name not in TITLES]
    )
    for transactional_id, metadata in coordinator.transactions():
        if metadata.state is not State.DEAD and is_wanted(transactional_id, metadata):
            answer.transaction_states.append(
                ListTransactionsResponse.TransactionState(
                    transactional_id=transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.title,
                )
            )
        yield
    return answer


def _pattern(pattern: str | None) -> Callable[[str], bool]:
    """A function that tests whether a whole transactional id matches the pattern."""
    if not pattern:
        return lambda _: True
    expression = compiled(pattern)
    return lambda name: expression.fullmatch(name) is not None


APIS = (
    Api(
        22,
        0,
        5,
        init_producer_id,
        access=(
            "TRANSACTIONAL_ID WRITE",
            "TRANSACTIONAL_ID TWO_PHASE_COMMIT",
            "CLUSTER IDEMPOTENT_WRITE",
            "TOPIC WRITE",
        ),
    ),
    Api(
        24,
        0,
        5,
        add_partitions_to_txn,
        access=("TRANSACTIONAL_ID WRITE", "TOPIC WRITE", "CLUSTER CLUSTER_ACTION"),
    ),
    Api(25, 0, 4, add_offsets_to_txn, access=("TRANSACTIONAL_ID WRITE", "GROUP READ")),
    Api(26, 0, 5, end_txn, access=("TRANSACTIONAL_ID WRITE",)),
    Api(27, 1, 2, write_txn_markers, access=("CLUSTER ALTER", "CLUSTER CLUSTER_ACTION")),
    Api(65, 0, 0, describe_transactions, access=("TRANSACTIONAL_ID DESCRIBE", "TOPIC DESCRIBE")),
    Api(66, 0, 2, list_transactions, access=("TRANSACTIONAL_ID DESCRIBE",)),
)
