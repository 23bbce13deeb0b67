"""FetchSessionHandler: the incremental fetch session of a replica fetcher with its leader (KIP-227).

The first request names all partitions. A later request names the partitions that changed. The leader answers
with the partitions that have something new: a fetch costs nothing for an idle partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.cluster.fetch_session import WantedPartition
from tidelog.cluster.partition_fetch_state import PartitionFetchState
from tidelog.metadata.state import NO_TOPIC_ID
from tidelog.protocol.messages.fetch import FetchRequest

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
LAST_EPOCH: Final = 0x7FFFFFFF

SessionKey = tuple[str, bytes, int]
"""The name and the id of a topic, and a partition."""


class FetchSessionHandler:
    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the limit of each partition."""
        self.max_bytes = max_bytes
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._members: dict[SessionKey, PartitionFetchState] = {}
        self._by_id: dict[tuple[bytes, int], PartitionFetchState] = {}
        self._left: dict[SessionKey, None] = {}  # in the session of the leader, to be forgotten
        self._without_ids: dict[SessionKey, None] = {}  # topics that are older than topic ids

    @property
    def is_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self.epoch == FULL_EPOCH

    @property
    def uses_topic_ids(self) -> bool:
        """Whether all topics have ids."""
        return not self._without_ids

    def __len__(self) -> int:
        return len(self._members)

    @property
    def is_unchanged(self) -> bool:
        """Whether the session of the leader has exactly the partitions of this one."""
        return self.epoch != FULL_EPOCH and not self._left and bool(self._members)

    def find(self, topic_id: bytes, index: int) -> PartitionFetchState | None:
        """A partition of the session, by the id of its topic."""
        return self._by_id.get((topic_id, index))

    def put(self, state: PartitionFetchState) -> FetchRequest.FetchPartition:
        """Fetch the partition as its state says, from the next request on."""
        key = _session_key(state)
        before = self._members.get(key)
        if before is not None and before is not state:
            before.in_session = False
        self._members[key] = self._by_id[key[1], key[2]] = state
        self._left.pop(key, None)
        if state.topic_id == NO_TOPIC_ID:
            self._without_ids[key] = None
        state.in_session = True
        state.session_offset = state.fetch_offset
        return FetchRequest.FetchPartition(
            partition=state.key[1],
            current_leader_epoch=state.leader_epoch,
            fetch_offset=state.fetch_offset,
            last_fetched_epoch=state.last_fetched_epoch,
            log_start_offset=state.log_start_offset,
            partition_max_bytes=self.max_bytes,
        )

    def wanted(self, state: PartitionFetchState) -> WantedPartition:
        """A partition of the session as its state says, for the next request."""
        state.session_offset = state.fetch_offset
        return (
            state.key[0] if self._without_ids else state.topic_id,
            state.key[1],
            state.leader_epoch,
            state.fetch_offset,
            state.last_fetched_epoch,
            state.log_start_offset,
            self.max_bytes,
        )

    def leave(self, state: PartitionFetchState) -> None:
        """Do not fetch the partition from the next request on."""
        key = _session_key(state)
        if self._members.get(key) is state:
            del self._members[key]
            self._by_id.pop((key[1], key[2]), None)
            self._left[key] = None
        state.in_session = False

    def topics(self, states: Iterable[PartitionFetchState]) -> list[FetchRequest.FetchTopic]:
        """The partitions for the next request, put into the session."""
        topics: dict[tuple[str, bytes], FetchRequest.FetchTopic] = {}
        for state in states:
            topic, topic_id = state.key[0], state.topic_id
            found = topics.get((topic, topic_id))
            if found is None:
                found = topics[topic, topic_id] = FetchRequest.FetchTopic(
                    topic=topic, topic_id=topic_id, partitions=[]
                )
            found.partitions.append(self.put(state))
        return list(topics.values())

    def forgotten(self) -> list[FetchRequest.ForgottenTopic]:
        """The partitions that the next request takes out of the session of the leader."""
        removed, self._left = self._left, {}
        for key in removed:
            self._without_ids.pop(key, None)
        if self.is_full:
            return []
        topics: dict[tuple[str, bytes], FetchRequest.ForgottenTopic] = {}
        for topic, topic_id, index in removed:
            found = topics.get((topic, topic_id))
            if found is None:
                found = topics[topic, topic_id] = FetchRequest.ForgottenTopic(
                    topic=topic, topic_id=topic_id, partitions=[]
                )
            found.partitions.append(index)
        return list(topics.values())

    def answered(self, session_id: int) -> None:
        """The leader accepted the request; it has no room for a session if `session_id` is 0."""
        if self.epoch == FULL_EPOCH:
            self.session_id = session_id
            if session_id == NO_SESSION:
                return
        self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Begin a new session with the next request."""
        self.session_id, self.epoch = NO_SESSION, FULL_EPOCH
        for state in self._members.values():
            state.in_session = False
        self._members.clear()
        self._by_id.clear()
        self._left.clear()
        self._without_ids.clear()


def _session_key(state: PartitionFetchState) -> SessionKey:
    return state.key[0], state.topic_id, state.key[1]
