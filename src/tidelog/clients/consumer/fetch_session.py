"""FetchSession: a broker remembers the partitions of a consumer, and requests have only changes (KIP-227)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.errors import FetchSessionIdNotFound, error_class
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.wire import ZERO_UUID

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = -1


class Wanted(NamedTuple):
    """The fetch parameters of a partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int


class FetchSession:
    """The session with one broker; one request is under way at a time."""

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.partitions: dict[TopicPartition, Wanted] = {}
        self.uses_ids = False

    def fill(
        self,
        request: FetchRequest,
        wanted: Mapping[TopicPartition, Wanted],
        max_bytes: int,
        *,
        with_ids: bool,
    ) -> None:
        """Fill a request: with all partitions at first, then with changes."""
        if with_ids != self.uses_ids:
            self.epoch = FIRST_EPOCH
            self.uses_ids = with_ids
        forgotten: list[TopicPartition] = []
        changed: Mapping[TopicPartition, Wanted] = wanted
        if self.epoch != FIRST_EPOCH:
            known = self.partitions
            # A topic that was created again has another id, and counts as another topic.
            replaced = {
                name
                for name, old in known.items()
                if name in wanted and wanted[name].topic_id != old.topic_id
            }
            forgotten = [name for name in known if name not in wanted or name in replaced]
            changed = {name: entry for name, entry in wanted.items() if known.get(name) != entry}
        request.session_id, request.session_epoch = self.id, self.epoch
        request.topics = _topics(changed, max_bytes)
        request.forgotten_topics_data = _forgotten(forgotten, self.partitions)
        self.partitions = dict(wanted)

    def close_into(self, request: FetchRequest) -> None:
        """Make a request that ends the session."""
        request.session_id, request.session_epoch = self.id, LAST_EPOCH

    def take(self, answer: FetchResponse) -> None:
        """Read the session fields of a response. Raises its error."""
        if answer.error_code:
            error = error_class(answer.error_code)
            self.epoch = FIRST_EPOCH  # this ends the broker's session, too
            if error is FetchSessionIdNotFound:
                self.id = NO_SESSION
            raise error(f"the fetch session: {error()}")
        if self.epoch == FIRST_EPOCH:
            self.id = answer.session_id
            self.epoch = FIRST_EPOCH + 1 if self.id != NO_SESSION else FIRST_EPOCH
        else:
            self.epoch = self.epoch + 1 if self.epoch < 0x7FFFFFFF else 1

    def failed(self) -> None:
        """Start a new session after a failed request, which the broker may have received or not."""
        self.epoch = FIRST_EPOCH

    def names(self) -> dict[bytes, str]:
        """The topics of the session by their ids."""
        return {entry.topic_id: name.topic for name, entry in self.partitions.items()}


def _topics(wanted: Mapping[TopicPartition, Wanted], max_bytes: int) -> list[FetchRequest.FetchTopic]:
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for (topic, partition), entry in wanted.items():
        found = topics.get(topic)
        if found is None:
            found = topics[topic] = FetchRequest.FetchTopic(topic=topic, topic_id=entry.topic_id)
        found.partitions.append(
            FetchRequest.FetchPartition(
                partition=partition,
                fetch_offset=entry.offset,
                current_leader_epoch=entry.leader_epoch,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(
    forgotten: list[TopicPartition], known: Mapping[TopicPartition, Wanted]
) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[tuple[str, bytes], FetchRequest.ForgottenTopic] = {}
    for name in forgotten:
        topic_id = known[name].topic_id if name in known else ZERO_UUID
        found = topics.setdefault(
            (name.topic, topic_id), FetchRequest.ForgottenTopic(topic=name.topic, topic_id=topic_id)
        )
        found.partitions.append(name.partition)
    return list(topics.values())
