"""OffsetCommit (8) v2-10, OffsetFetch (9) v1-10, TxnOffsetCommit (28) v0-5 and OffsetDelete (47) v0.

OffsetCommit keeps how far a group has read, and answers when that is committed:
- a topic or partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID from v10 on,
  which names topics by id; metadata beyond `offset.metadata.max.bytes` is OFFSET_METADATA_TOO_LARGE; the
  other partitions of the request are committed;
- whoever is not a member of the group, or of an older generation or epoch, changes nothing. A group that
  nobody knows is a simple consumer's where the generation is negative, else GROUP_ID_NOT_FOUND
  (ILLEGAL_GENERATION before v9); its id may be empty;
- v2-4 may bring a retention time, which holds for these offsets instead of `offsets.retention.minutes`.
OffsetFetch answers -1 for what was never committed. v2 asks for all topics with null, v7 with require_stable
refuses offsets that wait for the end of a transaction (UNSTABLE_OFFSET_COMMIT), v8 asks for several groups,
v9 names the member, v10 names topics by id.
TxnOffsetCommit is OffsetCommit within a transaction: what it commits holds when that is committed. v3 names
the member; v5 adds the partition of the offsets to the transaction by itself.
OffsetDelete removes offsets: those of topics that members subscribe to are GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from functools import partial

from tidelog.network.request import Request
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tidelog.server.apis.api import Api
from tidelog.server.services import Services
from tidelog.slices import Slices


def offset_commit(services: Services, request: Request, body: OffsetCommitRequest) -> None:
    services.groups.offsets.commit(body, request.api_version, partial(services.respond, request))


def offset_fetch(services: Services, request: Request, body: OffsetFetchRequest) -> Slices[None]:
    return services.groups.offsets.fetch(body, request.api_version, partial(services.respond, request))


def txn_offset_commit(services: Services, request: Request, body: TxnOffsetCommitRequest) -> None:
    services.groups.offsets.commit_in_transaction(
        body, request.api_version, partial(services.respond, request)
    )


def offset_delete(services: Services, request: Request, body: OffsetDeleteRequest) -> None:
    services.groups.offsets.delete(body, partial(services.respond, request))


APIS = (
    Api(8, 2, 10, offset_commit),
    Api(9, 1, 10, offset_fetch),
    Api(28, 0, 5, txn_offset_commit),
    Api(47, 0, 0, offset_delete),
)
