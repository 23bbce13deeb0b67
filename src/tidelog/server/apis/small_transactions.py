"""The fast path of AddPartitionsToTxn v0-3 and of EndTxn: written, committed and answered in one turn.

It reads the request from its frame alone. `transactions.py` handles every other request: one that is refused,
that waits for replicas or a flush, or that needs an authorizer or a quota.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from tidelog.coordinator.transaction.in_turn import TransactionsInTurn
from tidelog.coordinator.transaction.state import CLASSIC, EPOCH_BUMP, ProducerIdAndEpoch
from tidelog.network.channel import Channel
from tidelog.network.channel_state import DEFERRED
from tidelog.network.request import FastRequest
from tidelog.partitions import PartitionKey
from tidelog.protocol.api import ApiKey
from tidelog.protocol.headers import response_header
from tidelog.protocol.message import decoder_for
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis.transactions import ADD_COMES_FROM_BROKERS, END_BUMPS, transaction_result
from tidelog.server.services import Services

SMALL_BYTES = 512
"""A body up to this size has few partitions, which are remembered with their answer."""

REMEMBERED = 256
"""How many lists of partitions are remembered, with their answers."""

_PRODUCER = struct.Struct(">qh")
_HEAD = struct.Struct(">ii")  # the size of the frame, the correlation id
# EndTxn: throttle time and error code; from v3 on with tagged fields; from v5 on with the next producer.
_ENDED, _ENDED_FLEXIBLE, _ENDED_BUMPED = (
    struct.Struct(">iiih"),
    struct.Struct(">iibihb"),
    struct.Struct(">iibihqhb"),
)
# What follows the producer in EndTxn: whether it commits, and no tagged fields.
_COMMITS = {b"\0": False, b"\1": True}
_COMMITS_FLEXIBLE = {b"\0\0": False, b"\1\0": True}

Head = tuple[str, int, int, bytes]
"""The transactional id, the producer id, the producer epoch, and the bytes after them."""


class SmallTransactions:
    """Implements network.request.FastPath for both APIs."""

    __slots__ = ("_in_turn", "_services")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._in_turn = TransactionsInTurn(services.transactions)

    def add_partitions(self, fast_request: FastRequest, frame: memoryview, body_start: int) -> bool:
        channel, entry, correlation_id, _, _, _ = fast_request
        version = entry.api_version
        if version >= ADD_COMES_FROM_BROKERS or not self._is_free(channel):
            return False
        head = _read_head(frame, body_start, entry.flexible)
        found = None if head is None else _partitions(head[3], version)
        if head is None or found is None:
            return False
        transactional_id, producer_id, epoch, _ = head
        partitions, answer = found
        topics = self._services.metadata.snapshot.topics
        for topic, index in partitions:
            known = topics.get(topic)
            if known is None or index not in known.partitions:
                return False
        if not self._in_turn.add_partitions(transactional_id, producer_id, epoch, partitions, CLASSIC):
            return False
        channel.send_now(fast_request, _HEAD.pack(4 + len(answer), correlation_id) + answer)
        return True

    def end(self, fast_request: FastRequest, frame: memoryview, body_start: int) -> bool:
        channel, entry, correlation_id, _, _, _ = fast_request
        version, flexible = entry.api_version, entry.flexible
        head = _read_head(frame, body_start, flexible)
        if head is None or not self._is_free(channel):
            return False
        transactional_id, producer_id, epoch, rest = head
        commit = (_COMMITS_FLEXIBLE if flexible else _COMMITS).get(rest)
        if commit is None:
            return False

        def answer(following: ProducerIdAndEpoch) -> None:
            if not flexible:
                ended = _ENDED.pack(10, correlation_id, 0, 0)
            elif version < END_BUMPS:
                ended = _ENDED_FLEXIBLE.pack(12, correlation_id, 0, 0, 0, 0)
            else:
                ended = _ENDED_BUMPED.pack(22, correlation_id, 0, 0, 0, *following, 0)
            channel.send_now(fast_request, ended)

        return self._in_turn.end_transaction(
            transactional_id,
            producer_id,
            epoch,
            commit=commit,
            client_version=EPOCH_BUMP if version >= END_BUMPS else CLASSIC,
            done=answer,
        )

    def _is_free(self, channel: Channel) -> bool:
        """Whether the answer can be sent at once, without an authorizer and a quota."""
        services = self._services
        return services.authorizer is None and not services.quotas.is_active and not channel.state & DEFERRED


def _read_head(frame: memoryview, at: int, flexible: bool) -> Head | None:
    """The fields with which both requests begin; None unless the request is small and has them."""
    if len(frame) - at > SMALL_BYTES:
        return None
    try:
        if flexible:
            size = frame[at] - 1
            if size >= 0x7F:
                return None  # its length takes more than a byte
            at += 1
        else:
            size = frame[at] << 8 | frame[at + 1]
            at += 2
        end = at + size
        if size <= 0:
            return None
        producer_id, epoch = _PRODUCER.unpack_from(frame, end)
        return str(frame[at:end], "utf-8"), producer_id, epoch, bytes(frame[end + _PRODUCER.size :])
    except (IndexError, UnicodeDecodeError, struct.error):
        return None


@lru_cache(REMEMBERED)
def _partitions(topics: bytes, version: int) -> tuple[frozenset[PartitionKey], bytes] | None:
    """The partitions in the bytes of a request, and the answer that adds them, from its throttle time on.

    None if the bytes are malformed or have no partition.
    """
    flexible = AddPartitionsToTxnRequest.FLEXIBLE.has(version)
    nobody = (b"\1" if flexible else b"\0\0") + bytes(_PRODUCER.size)
    try:
        body, _ = decoder_for(AddPartitionsToTxnRequest, version)(nobody + topics, 0)
    except ProtocolError:
        return None
    found = body.v3_and_below_topics
    partitions = frozenset((topic.name, index) for topic in found for index in topic.partitions)
    if not partitions:
        return None
    added = AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=transaction_result("", found, lambda _: None, version).topic_results
    )
    header = response_header(ApiKey.ADD_PARTITIONS_TO_TXN, version, 0)
    return partitions, added.encode(version, header)[4:]
