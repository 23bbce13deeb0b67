"""Faults planted into the program on purpose: the simulation has to find each of them.

A plant replaces a function by one that breaks a rule. Those that only followers can show need replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.cluster import fetch, metadata_update, replica_states
from tidelog.cluster.append_queue import AppendQueue
from tidelog.cluster.delayed import DelayedProduce
from tidelog.cluster.fetch import FetchParams
from tidelog.cluster.followers import Followers, Replica
from tidelog.cluster.isr_manager import IsrManager
from tidelog.cluster.partition import Partition
from tidelog.cluster.partition_fetch_state import PartitionFetchState
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.replica_states import ReplicaStates
from tidelog.controller import partition_state_machine
from tidelog.controller.broker_changes import BrokerChanges
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.partition_changes import PartitionChanges
from tidelog.controller.suspected_brokers import SuspectedBrokers
from tidelog.controller.watches import ChangeWatch
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.reconcile import Reconciler
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import LocalMarkers, Marker, MarkerDone
from tidelog.coordinator.transaction.state import PREPARED, Transaction
from tidelog.errors import ErrorCode, StaleControllerEpoch
from tidelog.metadata import operations
from tidelog.metadata.state import BrokerRegistration, PartitionState
from tidelog.metadata.tree import ANY_VERSION, Check, WatchEvent
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
from tidelog.server.zookeeper_membership import ZooKeeperMembership
from tidelog.simulation.disk import SimulatedDisk, SimulatedFile
from tidelog.storage.append import AppendResult
from tidelog.storage.blocking_tasks import BlockingTasks, run_here
from tidelog.storage.log import Log
from tidelog.storage.log_creator import LogCreator
from tidelog.storage.log_manager import LogManager
from tidelog.storage.producer_state_manager import ProducerStateManager


class Patch:
    """Replaces attributes, and puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: object) -> Any:
        before = owner.__dict__[name]
        self._before.append((owner, name, before))
        setattr(owner, name, value)
        return before

    def undo(self) -> None:
        for owner, name, before in reversed(self._before):
            setattr(owner, name, before)


def _nothing(*args: object, **named: object) -> None:
    """Does nothing, where something is needed."""


# -- disks and logs ----------------------------------------------------------------------------------


def disk_lies(patch: Patch) -> None:
    """A sync returns before anything is durable."""
    patch.set(SimulatedFile, "fsync", _nothing)
    patch.set(SimulatedDisk, "fsync", _nothing)


def duplicates_are_written(patch: Patch) -> None:
    """A batch that a producer repeats is written again."""
    patch.set(ProducerStateManager, "find_duplicate", _nothing)
    patch.set(ProducerStateManager, "check", _nothing)


def producers_are_forgotten(patch: Patch) -> None:
    """A start does not load the snapshot of the producers."""
    patch.set(ProducerStateManager, "load", lambda self, entries, offset, now_ms: self.clear())


def retries_are_not_looked_up(patch: Patch) -> None:
    """After a clean start a log knows the last batch of each producer alone."""
    patch.set(ProducerStateManager, "may_have_forgotten", _nothing)


# -- transactions and groups -------------------------------------------------------------------------


def reads_are_dirty(patch: Patch) -> None:
    """Readers of committed records get what is not committed, and what is aborted."""

    def read(partition: Any, wanted: Any, size: int, params: FetchParams, *rest: Any) -> object:
        return before(partition, wanted, size, replace(params, isolation_level=0), *rest)

    before = patch.set(fetch, "read_partition", read)


def markers_are_lost(patch: Patch) -> None:
    """A transaction ends without the marker of one of its partitions."""

    def write(self: LocalMarkers, marker: Marker, keys: Iterable[PartitionKey], done: MarkerDone) -> None:
        first, *rest = keys
        if marker.producer_epoch % 5:
            before(self, marker, [first], done)
        else:
            self._scheduler.call_soon_in_turn(lambda: done(first, None))
        before(self, marker, rest, done)

    before = patch.set(LocalMarkers, "write", write)


def aborted_offsets_stay(patch: Patch) -> None:
    """The group offsets of an aborted transaction are committed."""

    def end(self: Offsets, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        before(self, producer_id, producer_epoch, commit=True)

    before = patch.set(Offsets, "end_transaction", end)


def strangers_commit(patch: Patch) -> None:
    """A member that was removed from its group may commit."""
    patch.set(ClassicGroup, "validate_offset_commit", _nothing)


def partitions_have_two_owners(patch: Patch) -> None:
    """A consumer group gives a partition away before its owner has released it."""

    def step(self: Reconciler, *args: Any, **named: Any) -> object:
        self._owners = {}
        return before(self, *args, **named)

    before = patch.set(Reconciler, "step", step)


def decisions_are_not_written(patch: Patch) -> None:
    """Markers go out although the record that ends their transaction is not in the log."""

    def write(
        self: TransactionCoordinator, shard: Any, transaction: Transaction, transition: Any, *rest: Any
    ) -> None:
        if transition.metadata.state not in PREPARED:
            before(self, shard, transaction, transition, *rest)
            return
        done, _ = rest
        shard.take(transaction.transactional_id, transition.metadata)
        transaction.last_producer_epoch = transition.last_producer_epoch
        done()

    before = patch.set(TransactionCoordinator, "_write", write)


def producers_are_not_fenced(patch: Patch) -> None:
    """A producer gets the epoch of the producer before it with the same transactional id."""

    def to_empty(self: Transaction, producer_id: int, epoch: int, *rest: Any) -> object:
        return before(self, producer_id, max(0, epoch - 1), *rest)

    before = patch.set(Transaction, "_to_empty", to_empty)


# -- the cluster -------------------------------------------------------------------------------------


def old_controllers_are_obeyed(patch: Patch) -> None:
    """A broker applies the requests of a controller although it knows one with a later epoch."""
    patch.set(ReplicaStates, "_check_controller", _nothing)


def old_connections_are_heard(patch: Patch) -> None:
    """A broker obeys requests over a connection that the controller has given up."""
    patch.set(ReplicaStates, "check_connection", _nothing)


def old_states_are_applied(patch: Patch) -> None:
    """A broker applies each state of a partition that the controller has sent, also after a newer one."""
    old_connections_are_heard(patch)

    def check(*args: Any) -> None:
        with suppress(StaleControllerEpoch):
            before(*args)

    before = patch.set(replica_states, "check_leader_and_isr", check)


def absence_is_deletion(patch: Patch) -> None:
    """A broker takes each update of the metadata for a full one: topics that it does not name are deleted."""

    def full(state: Any, request: Any, *, is_full: bool = False) -> object:
        return before(state, request, is_full=True)

    before = patch.set(metadata_update, "updated", full)


def epochs_stay(patch: Patch) -> None:
    """A new leader has the leader epoch of the one before."""

    def elect(state: PartitionState, *args: Any, **named: Any) -> PartitionState | None:
        elected = before(state, *args, **named)
        return None if elected is None else replace(elected, leader_epoch=state.leader_epoch)

    before = patch.set(partition_state_machine.election, "elect_for_offline", elect)


def old_controllers_write(patch: Patch) -> None:
    """A controller goes on after its session expired, and its writes do not check its epoch."""
    unchecked = property(lambda self: Check("/controller_epoch", ANY_VERSION))
    patch.set(operations.ControllerEpoch, "check", unchecked)
    patch.set(ClusterController, "_end_term", _nothing)


def watches_are_lost(patch: Patch) -> None:
    """A watch of the controller is set once, and not again after it fired."""

    def fire(self: ChangeWatch, event: WatchEvent) -> None:
        if self._changed is not None:
            self._changed(event)

    patch.set(ChangeWatch, "_fire", fire)


def expired_brokers_stay_away(patch: Patch) -> None:
    """A broker whose session expired does not register again."""

    async def register(self: ZooKeeperMembership) -> None:
        if not self._has_joined:
            await before(self)

    before = patch.set(ZooKeeperMembership, "_register", register)


def restarts_are_overlooked(patch: Patch) -> None:
    """The controller does nothing about a broker that comes back before its old registration is gone."""

    async def start(self: BrokerChanges, brokers: Sequence[BrokerRegistration]) -> None:
        live = self._context.live_or_shutting_down_brokers
        if new := [broker for broker in brokers if broker.broker_id not in live]:
            await started(self, new)

    async def fail(self: BrokerChanges, broker_ids: Sequence[int]) -> None:
        reached = self._term.channels.broker_ids
        if gone := [broker_id for broker_id in broker_ids if broker_id not in reached]:
            await failed(self, gone)

    started = patch.set(BrokerChanges, "_start", start)
    failed = patch.set(BrokerChanges, "_fail", fail)


def broken_folders_are_not_reported(patch: Patch) -> None:
    """A broker keeps it to itself that one of its log folders failed."""

    async def tell(self: ZooKeeperMembership, partitions: object) -> None: ...

    patch.set(ZooKeeperMembership, "tell_controller", tell)


def logs_in_broken_folders_are_made_anew(patch: Patch) -> None:
    """A broker that starts without one of its log folders creates the logs of that folder in another one."""

    def create(self: LogCreator, wanted: Any, done: Any, *, is_new: bool = True) -> None:
        creates(self, wanted, done, is_new=True)

    def get(self: LogManager, *args: Any, is_new: bool = True, **named: Any) -> Log:
        log: Log = gets(self, *args, is_new=True, **named)
        return log

    creates = patch.set(LogCreator, "create_later", create)
    gets = patch.set(LogManager, "get_or_create", get)


def suspicions_stay(patch: Patch) -> None:
    """A suspected broker that answers again does not come back."""

    async def clear(self: SuspectedBrokers, broker_id: int) -> None: ...

    patch.set(SuspectedBrokers, "_clear", clear)


# -- replication -------------------------------------------------------------------------------------


def candidates_and_leavers_do_not_count(patch: Patch) -> None:
    """The high watermark follows the ISR that the leader wants, before the controller has it."""

    def committed(self: Followers, offset: int, leader_end: int, rules: Any) -> int:
        members = self.isr if self.pending is None or self.pending.is_expansion else self.pending.isr
        ends = [self.replicas[member].log_end_offset for member in members if member in self.replicas]
        return min([offset, *ends])

    patch.set(Followers, "committed_up_to", committed)


def logs_are_not_truncated(patch: Patch) -> None:
    """The leader does not tell a follower that its log diverges."""
    patch.set(fetch, "_diverging_epoch", _nothing)


def logs_are_truncated_to_high_watermarks(patch: Patch) -> None:
    """A follower drops everything above its high watermark, which may lag, when it gets a leader."""

    def init(self: PartitionFetchState, partition: Partition) -> None:
        before(self, partition)
        assert partition.log is not None
        self.is_truncating, self.fetch_offset = True, partition.log.high_watermark

    before = patch.set(PartitionFetchState, "__init__", init)


def anyone_leads(patch: Patch) -> None:
    """Each election may be unclean."""

    def elect(*args: Any, **named: Any) -> PartitionState | None:
        named["unclean"] = True
        elected: PartitionState | None = before(*args, **named)
        return elected

    before = patch.set(partition_state_machine.election, "elect_for_offline", elect)


def written_is_acknowledged(patch: Patch) -> None:
    """acks=all is answered when the leader has the records."""

    def complete(self: DelayedProduce) -> bool:
        self._wanted = []
        return self.force_complete()

    patch.set(DelayedProduce, "try_complete", complete)


def markers_go_out_early(patch: Patch) -> None:
    """Coordinators act on records that are written and not committed."""

    def when_committed(
        self: ReplicaManager, partition: Partition, needs_flush: bool, first: AppendResult, *rest: Any
    ) -> None:
        *_, done = rest
        if needs_flush:
            self.flush_then(partition, first.base_offset, lambda _: done(None))
        else:
            partition.advance_high_watermark()
            done(None)

    patch.set(ReplicaManager, "_when_committed", when_committed)


def laggards_join_the_isr(patch: Patch) -> None:
    """A follower joins the ISR with its first fetch."""

    def expand(self: IsrManager, partition: Partition, replica: Replica) -> None:
        followers = partition.followers
        if followers.pending is None and replica.broker_id not in followers.isr:
            self._ask(partition, [*followers.isr, replica.broker_id], is_expansion=True)

    patch.set(IsrManager, "maybe_expand", expand)


def old_leaders_change_the_isr(patch: Patch) -> None:
    """The controller makes the changes that leaders of earlier epochs ask for."""
    patch.set(PartitionChanges, "_refusal", lambda *args: ErrorCode.NONE)


def consumers_read_to_the_log_end(patch: Patch) -> None:
    """A consumer gets records that are written and not committed."""

    def read(self: Log, offset: int, size: int, *, max_offset: int | None = None, **named: Any) -> object:
        limit = self.log_end_offset if max_offset == self.high_watermark else max_offset
        return before(self, offset, size, max_offset=limit, **named)

    before = patch.set(Log, "read", read)


def appends_land_under_the_next_epoch(patch: Patch) -> None:
    """The leader epoch changes while an append is at the worker."""

    def between(self: AppendQueue, change: Callable[[], None]) -> None:
        change()

    patch.set(AppendQueue, "between", between)


def brokers_wait_behind_clients(patch: Patch) -> None:
    """Requests that wait keep their place in the request queue, and requests of brokers need one, too."""
    patch.set(Request, "exempt_connection", _nothing)
    patch.set(Request, "waiting", _nothing)


def loops_wait_for_disks(patch: Patch) -> None:
    """A segment that rolls is synced on the loop."""
    patch.set(BlockingTasks, "run", lambda self, work, done: run_here(work, done))


class Plant(NamedTuple):
    plant: Callable[[Patch], None]
    brokers: int = 3
    seeds: int = 12
    """Within how many seeds it is found."""
    seed: int = 0
    """The seed that is tried first."""
    replicas: int = 1
    fails_folders: bool = False
    delays_connections: bool = False
    seconds: int = 12
    """For how long faults happen to replicas."""


PLANTED: dict[str, Plant] = {
    plant.plant.__name__.replace("_", "-"): plant
    for plant in [
        Plant(disk_lies, 1, seed=1),
        Plant(duplicates_are_written, 1),
        Plant(producers_are_forgotten, 1, 40),
        Plant(retries_are_not_looked_up, 1, seed=54),
        Plant(reads_are_dirty, 1),
        Plant(markers_are_lost, 1),
        Plant(aborted_offsets_stay, 1),
        Plant(strangers_commit, 1, 120),
        Plant(partitions_have_two_owners, 1, 40),
        Plant(absence_is_deletion),
        Plant(epochs_stay),
        Plant(old_controllers_write, 3, 30),
        Plant(watches_are_lost, seed=1),
        Plant(expired_brokers_stay_away),
        Plant(restarts_are_overlooked, 3, 60),
        Plant(decisions_are_not_written, seed=4),
        Plant(producers_are_not_fenced, 1, seed=1),
        Plant(old_controllers_are_obeyed, seed=4),
        Plant(old_connections_are_heard, replicas=3, delays_connections=True),
        Plant(old_states_are_applied, replicas=3, delays_connections=True),
        Plant(candidates_and_leavers_do_not_count, replicas=3),
        Plant(logs_are_not_truncated, seed=4, replicas=3),
        Plant(logs_are_truncated_to_high_watermarks, replicas=3),
        Plant(anyone_leads, seed=7, replicas=3),
        Plant(written_is_acknowledged, seed=1, replicas=3),
        Plant(markers_go_out_early, seed=1, replicas=3),
        Plant(laggards_join_the_isr, replicas=3),
        Plant(old_leaders_change_the_isr, seed=4, replicas=3),
        Plant(brokers_wait_behind_clients, seed=4, replicas=3),
        Plant(loops_wait_for_disks, replicas=3),
        Plant(consumers_read_to_the_log_end, replicas=3),
        Plant(appends_land_under_the_next_epoch, 3, 40, seed=44, replicas=3, seconds=20),
        Plant(suspicions_stay, replicas=3),
        Plant(broken_folders_are_not_reported, replicas=3, fails_folders=True, seconds=2),
        Plant(logs_in_broken_folders_are_made_anew, 3, 40, replicas=3, fails_folders=True, seconds=2),
    ]
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Break the program while the block runs; None leaves it whole."""
    patch = Patch()
    try:
        if name is not None:
            PLANTED[name].plant(patch)
        yield
    finally:
        patch.undo()
