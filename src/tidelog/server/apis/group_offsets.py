"""OffsetCommit (8) v2-10, OffsetFetch (9) v1-10, TxnOffsetCommit (28) v0-5 and OffsetDelete (47) v0.

OffsetCommit commits the offsets of a group, and answers when they are committed:
- An unknown topic or partition is UNKNOWN_TOPIC_OR_PARTITION. v10 names topics by id: an unknown id is
  UNKNOWN_TOPIC_ID. Metadata longer than `offset.metadata.max.bytes` is OFFSET_METADATA_TOO_LARGE. The other
  partitions of the request are committed.
- Only members commit, and only with their current generation or epoch. An unknown group with a negative
  generation is a simple consumer; its id may be empty. With another generation an unknown group is
  GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before v9).
- v2-4 may have a retention time, which replaces `offsets.retention.minutes` for these offsets.
OffsetFetch answers -1 for a partition without a committed offset. v2 fetches all topics with null. v7 has
require_stable: an offset in an open transaction is UNSTABLE_OFFSET_COMMIT. v8 fetches the offsets of several
groups, v9 names the member, v10 names topics by id.
TxnOffsetCommit commits offsets in a transaction: they count once the transaction is committed. v3 names the
member. v5 adds the partition of the offsets topic to the transaction.
OffsetDelete deletes offsets. A topic with subscribed members is GROUP_SUBSCRIBED_TO_TOPIC.
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
