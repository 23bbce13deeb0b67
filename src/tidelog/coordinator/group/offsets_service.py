"""GroupOffsets: commits, fetches and deletes the offsets of groups.

Each partition has its own error. An error of the whole group changes nothing. A change is answered when it is
committed, as with acks=all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.group.group import CommitCheck, Group
from tidelog.coordinator.group.offsets import Offsets, tombstone
from tidelog.coordinator.group.offsets_commit import Commit, commit_answer, txn_commit_answer
from tidelog.coordinator.group.offsets_fetch import (
    FETCHES_BY_TOPIC_ID,
    FetchAnswer,
    FoundGroup,
    GroupFetch,
    OffsetAccess,
    wanted_groups,
)
from tidelog.coordinator.group.offsets_upkeep import OffsetsUpkeep
from tidelog.coordinator.group.records import LAST_TIMESTAMP, NO_TIMESTAMP
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import CoordinatorRuntime, Done, NewRecord, Shard
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    KafkaError,
    StaleMemberEpoch,
)
from tidelog.metadata.state import ClusterState
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.slices import Slices

# From this version on OffsetCommit and its answers have topic ids.
COMMITS_BY_TOPIC_ID = 10
# From this version on a commit to an unknown group is answered with GROUP_ID_NOT_FOUND.
COMMITS_NEED_GROUP = 9
# Producers with older versions do not know COORDINATOR_LOAD_IN_PROGRESS.
TXN_KNOWS_LOADING = 2


class OffsetsShard(Shard, Protocol):
    """The part of a shard that the service uses."""

    @property
    def partition(self) -> int: ...

    @property
    def groups(self) -> Mapping[str, Group]: ...

    @property
    def offsets(self) -> Offsets: ...

    def committed_group(self, group_id: str) -> Group | None:
        """The committed state of the group."""


S = TypeVar("S", bound=OffsetsShard)

HeardFrom = Callable[[S, Group, str], None]
"""Called with shard, group and member id of a member that commits, which shows that it is alive."""


class TransactionCheck(Protocol):
    """Checks that a group's partition is part of an open transaction. `done` gets the error if it is not.

    From version 5 of TxnOffsetCommit on, it adds a missing partition to the transaction.
    """

    def __call__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: int,
        *,
        version: int,
        done: Done,
    ) -> None: ...


class GroupOffsets(Generic[S]):
    """Calls `heard_from` for each member that commits.

    Calls `check_transaction`, which the broker sets, before
    offsets are appended in a transaction."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[S],
        metadata: MetadataCache,
        settings: GroupSettings,
        heard_from: HeardFrom[S] | None = None,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._settings = settings
        self._clock = runtime.scheduler.clock
        self._heard_from = heard_from
        self.check_transaction: TransactionCheck | None = None
        self._upkeep = OffsetsUpkeep(runtime, settings)
        # Offsets committed and deleted by requests since the start, for the metrics.
        self.commits = 0
        self.deletions = 0

    def start(self) -> None:
        """Start to remove expired offsets."""
        self._upkeep.start()

    def close(self) -> None:
        self._upkeep.close()

    def expire(self) -> None:
        """Remove expired offsets once, now."""
        self._upkeep.expire()

    def topics_deleted(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Delete the offsets of deleted topics, by name and id."""
        self._upkeep.topics_deleted(topics)

    @property
    def expirations(self) -> int:
        """The number of offsets that have expired since the start."""
        return self._upkeep.expirations

    @property
    def count(self) -> int:
        """The number of committed offsets in the shards of this broker."""
        return sum(shard.offsets.count for shard in self._runtime.shards())

    # -- commit --------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, done: Callable[[OffsetCommitResponse], None]
    ) -> None:
        commit = Commit(request.group_id)
        snapshot = self._metadata.snapshot
        if version >= COMMITS_BY_TOPIC_ID:
            for topic in request.topics:
                state = snapshot.topic_by_id(topic.topic_id)
                commit.take(topic.topic_id, state, topic.partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            for topic in request.topics:
                commit.take(topic.name, snapshot.topics.get(topic.name), topic.partitions)

        def finish() -> None:
            done(commit_answer(commit))

        def failed(error: KafkaError) -> None:
            commit.refuse(error)
            finish()

        def operate(shard: S) -> None:
            try:
                check = self._validate_commit(shard, request, version)
                self._append(shard, commit, check, finish, failed, request.retention_time_ms)
            except KafkaError as error:
                failed(error)

        self._start(commit, operate, finish, failed)

    def _start(
        self,
        commit: Commit,
        operate: Callable[[S], None],
        finish: Callable[[], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        if not commit.wanted:
            finish()
            return
        try:
            partition = self._runtime.partition_for(commit.group_id)
        except KafkaError as error:
            failed(error)
            return
        self._runtime.run(partition, operate, failed)

    def _validate_commit(self, shard: S, request: OffsetCommitRequest, version: int) -> CommitCheck | None:
        group = shard.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation < 0:
                return None  # a simple consumer or an administrator: the record creates the group
            if version >= COMMITS_NEED_GROUP:
                raise GroupIdNotFound(f"there is no group {request.group_id}")
            raise IllegalGeneration(f"there is no group {request.group_id} with a generation {generation}")
        check = group.validate_offset_commit(
            request.member_id,
            request.group_instance_id,
            generation,
            transactional=False,
            api_version=version,
        )
        if self._heard_from is not None and request.member_id:
            self._heard_from(shard, group, request.member_id)
        return check

    def _append(
        self,
        shard: S,
        commit: Commit,
        check: CommitCheck | None,
        finish: Callable[[], None],
        failed: Callable[[KafkaError], None],
        retention_ms: int = NO_TIMESTAMP,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        now = commit.commit_timestamp = self._clock.ms()
        if retention_ms != NO_TIMESTAMP:
            # A retention time near the largest possible number means for ever.
            commit.expire_timestamp = min(now + retention_ms, LAST_TIMESTAMP)
        records, codes = commit.records(
            self._settings.offset_metadata_max_bytes, check, with_topic_ids=self._settings.group_version >= 1
        )
        self.commits += len(records)

        def appended(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
                return
            commit.accept(codes)
            finish()

        self._runtime.append(
            shard.partition, records, appended, producer_id=producer_id, producer_epoch=producer_epoch
        )

    # -- commit in a transaction -----------------------------------------------------------------------

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, version: int, done: Callable[[TxnOffsetCommitResponse], None]
    ) -> None:
        commit = Commit(request.group_id)
        snapshot = self._metadata.snapshot
        for topic in request.topics:
            commit.take(topic.name, snapshot.topics.get(topic.name), topic.partitions)

        def finish() -> None:
            done(txn_commit_answer(commit))

        def failed(error: KafkaError) -> None:
            if version < TXN_KNOWS_LOADING and isinstance(error, CoordinatorLoadInProgress):
                error = CoordinatorNotAvailable(error.message)
            commit.refuse(error)
            finish()

        def operate(shard: S) -> None:
            try:
                check = self._validate_txn_commit(shard, request, version)
                self._append(
                    shard,
                    commit,
                    check,
                    finish,
                    failed,
                    producer_id=request.producer_id,
                    producer_epoch=request.producer_epoch,
                )
            except KafkaError as error:
                failed(error)

        def verified(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
            else:
                self._start(commit, operate, finish, failed)

        if not commit.wanted:
            finish()
        elif not request.group_id:
            failed(InvalidGroupId("a group that commits in a transaction needs an id"))
        else:
            self._verify(request, version, verified, failed)

    def _verify(
        self,
        request: TxnOffsetCommitRequest,
        version: int,
        done: Done,
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Check that the transaction is open before its offsets are written."""
        try:
            partition = self._runtime.partition_for(request.group_id)
            self._runtime.shard(partition)
        except KafkaError as error:
            failed(error)
            return
        if self.check_transaction is None:
            done(None)
        else:
            self.check_transaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                partition,
                version=version,
                done=done,
            )

    def _validate_txn_commit(
        self, shard: S, request: TxnOffsetCommitRequest, version: int
    ) -> CommitCheck | None:
        group = shard.groups.get(request.group_id)
        if group is None:
            if request.generation_id < 0:
                return None
            raise IllegalGeneration(
                f"there is no group {request.group_id} with a generation {request.generation_id}"
            )
        try:
            check = group.validate_offset_commit(
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                transactional=True,
                api_version=version,
            )
        except StaleMemberEpoch as error:
            # Producers do not know member epochs.
            raise IllegalGeneration(error.message) from None
        return None if check is None else _in_generations(check)

    # -- fetch ---------------------------------------------------------------------------------------

    def fetch(
        self,
        request: OffsetFetchRequest,
        version: int,
        done: Callable[[OffsetFetchResponse], None],
        access: OffsetAccess | None = None,
    ) -> Slices[None]:
        """Collect the offsets of the groups in slices, then call `done` with the answer.

        `access` says what the client may see; None for everything.
        """
        groups = wanted_groups(request, version)
        answer = FetchAnswer(groups, version, done)
        for slot, wanted in enumerate(groups):
            fetch = GroupFetch(
                wanted,
                self._metadata.snapshot,
                by_id=version >= FETCHES_BY_TOPIC_ID,
                require_stable=request.require_stable,
                access=access,
            )
            if access is None or access.may_describe_group(wanted.group_id):
                self._fetch(wanted.group_id, fetch, partial(answer.found, slot))
            else:
                answer.found(slot, fetch.refusal(GroupAuthorizationFailed()))
            yield

    def _fetch(self, group_id: str, fetch: GroupFetch, found: Callable[[FoundGroup], None]) -> None:
        def failed(error: KafkaError) -> None:
            found(fetch.refusal(error))

        def answer(shard: S) -> None:
            try:
                shard.journal.check_readable()
            except KafkaError as error:
                failed(error)
                return
            shard.journal.settle()
            found(fetch.answer(shard.offsets.committed_view(group_id), shard.committed_group(group_id)))

        try:
            partition = self._runtime.partition_for(group_id)
        except KafkaError as error:
            failed(error)
            return
        self._runtime.run(partition, answer, failed)

    # -- delete --------------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest, done: Callable[[OffsetDeleteResponse], None]) -> None:
        answers: dict[str, list[tuple[int, int]]] = {}
        wanted = _existing(self._metadata.snapshot, request, answers)

        def failed(error: KafkaError) -> None:
            done(OffsetDeleteResponse(error_code=error.code))

        def operate(shard: S) -> None:
            try:
                group = shard.groups.get(request.group_id)
                if group is None:
                    raise GroupIdNotFound(f"there is no group {request.group_id}")
                group.validate_offset_delete()
            except KafkaError as error:
                failed(error)
                return
            records = _deletions(shard.offsets, group, wanted, answers)
            self.deletions += len(records)
            self._runtime.append_parts(shard.partition, records, deleted)

        def deleted(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
            else:
                done(_delete_answer(answers))

        if not request.group_id:
            failed(InvalidGroupId("a group whose offsets are deleted needs an id"))
            return
        try:
            partition = self._runtime.partition_for(request.group_id)
        except KafkaError as error:
            failed(error)
            return
        self._runtime.run(partition, operate, failed)


def _in_generations(check: CommitCheck) -> CommitCheck:
    def checked(topic_id: bytes, partition: int) -> None:
        try:
            check(topic_id, partition)
        except StaleMemberEpoch as error:
            raise IllegalGeneration(error.message) from None

    return checked


def _existing(
    snapshot: ClusterState, request: OffsetDeleteRequest, answers: dict[str, list[tuple[int, int]]]
) -> dict[str, list[int]]:
    """The existing partitions; the others get their error."""
    existing: dict[str, list[int]] = {}
    for topic in request.topics:
        state = snapshot.topics.get(topic.name)
        for partition in topic.partitions:
            if state is not None and partition.partition_index in state.partitions:
                existing.setdefault(topic.name, []).append(partition.partition_index)
            else:
                unknown = (partition.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                answers.setdefault(topic.name, []).append(unknown)
    return existing


def _deletions(
    offsets: Offsets,
    group: Group,
    topics: dict[str, list[int]],
    answers: dict[str, list[tuple[int, int]]],
) -> list[NewRecord]:
    """The tombstones of existing offsets; offsets of subscribed topics are refused."""
    committed: dict[PartitionKey, None] = {}
    for topic, partitions in topics.items():
        topic_answers = answers.setdefault(topic, [])
        if group.is_subscribed_to(topic):
            topic_answers += [(partition, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) for partition in partitions]
            continue
        topic_answers += [(partition, 0) for partition in partitions]
        names = [(topic, partition) for partition in partitions]
        committed |= dict.fromkeys(name for name in names if offsets.has_offset(group.group_id, name))
    return [tombstone(group.group_id, name) for name in committed]


def _delete_answer(answers: dict[str, list[tuple[int, int]]]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=partition, error_code=code
                    )
                    for partition, code in codes
                ],
            )
            for topic, codes in answers.items()
        ]
    )
