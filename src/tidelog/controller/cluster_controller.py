"""ClusterController: the part of a broker that competes to be the controller of the cluster.

Kafka's counterpart is KafkaController. Every broker has one, and ZooKeeper lets one of them be active. It
becomes active with a new controller epoch, reads the cluster and informs the brokers (ActiveController). It
resigns when its session expires or another broker was elected. The others only know the active one. All
events go through one queue.

Requests to a controller that is not active raise NotController.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from tidelog.clock import Clock
from tidelog.cluster.transport import Transport
from tidelog.controller.channel_manager import ChannelSettings, QueueTimeListener
from tidelog.controller.context import ControllerContext
from tidelog.controller.event_manager import (
    ControllerEvent,
    ControllerEventManager,
    ControllerState,
    EventCleared,
)
from tidelog.controller.interface import (
    ConfigRules,
    DeletedTopic,
    MutationQuota,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.controller.parts import ControllerParts, ElectionStats
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.watches import ChangeWatch
from tidelog.errors import KafkaError, NotController, RequestTimedOut, UnknownServerError
from tidelog.metadata.async_tree import SessionEvent, SessionExpired
from tidelog.metadata.cluster_store import ClusterStore, KRaftController
from tidelog.metadata.operations import ControllerEpoch, Fenced
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import EventType, TreeError, WatchEvent
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from tidelog.controller.active_controller import ActiveController

NO_CONTROLLER = -1

RETRY_SECONDS = 1.0
"""The wait before a broker competes again after it failed as controller, and before it registers again."""

OTHERS_SECONDS = 1.0
"""How long an answer to a client waits for brokers that have no part in the change."""

STANDBY_SECONDS = 3.0
"""When a broker that was not elected gets ready to be, after its start."""

CLOSE_SECONDS = 5.0
"""How long a stop waits for the running event and for ZooKeeper."""

T = TypeVar("T")
R = TypeVar("R", TopicResult, PartitionsResult)

_log = logging.getLogger("tidelog.controller")


class ClusterController:
    """`register_broker` registers this broker anew after its session expired.

    `channels` has the listener on which brokers accept requests of the controller. Followers use the
    addresses of `inter_broker_listener`.
    """

    def __init__(
        self,
        broker_id: int,
        store: ClusterStore,
        transport: Transport,
        rules: ConfigRules,
        register_broker: Callable[[], Awaitable[object]],
        *,
        settings: ControllerSettings,
        channels: ChannelSettings,
        inter_broker_listener: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.broker_id = broker_id
        self.active_controller_id = NO_CONTROLLER
        """The broker that is the controller, as far as this one knows."""
        self.events = ControllerEventManager(clock, self._fenced)
        self._store = store
        self._register_broker = register_broker
        self._parts = ControllerParts(
            broker_id, store, transport, rules, settings, channels, inter_broker_listener, rng
        )
        self._active: ActiveController | None = None
        self._idle_context = ControllerContext()
        self._election = ChangeWatch(self._controller_changed)
        self._not_before = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The next attempts, by the names of their events."""
        self._standby: asyncio.TimerHandle | None = None

    @property
    def is_active(self) -> bool:
        return self._active is not None

    @property
    def epoch(self) -> int:
        """The epoch of this controller; 0 if it is not active."""
        return self.context.epoch

    @property
    def context(self) -> ControllerContext:
        """The context of the active controller; empty if this one is not active."""
        return self._idle_context if self._active is None else self._active.term.context

    def queue_sizes(self) -> dict[int, int]:
        """The unanswered requests to each broker; empty if this controller is not active."""
        if self._active is None:
            return {}
        channels = self._active.term.channels
        return {broker_id: channels.queue_size(broker_id) for broker_id in channels.broker_ids}

    def listen_to_queue_times(self, listener: QueueTimeListener) -> None:
        """Call the listener for each request that is sent to a broker."""
        self._parts.on_queue_time = listener

    @property
    def stats(self) -> ElectionStats:
        """The elections that this controller has made, in all of its terms."""
        return self._parts.stats

    @property
    def settings(self) -> ControllerSettings:
        return self._parts.settings

    def update_settings(self, settings: ControllerSettings) -> None:
        """Replace the settings. The time of the next check of the balance of leaders does not change."""
        for setting in fields(settings):
            setattr(self._parts.settings, setting.name, getattr(settings, setting.name))

    # --- start and stop

    def start(self) -> None:
        """Compete to be the controller. This broker is registered already."""
        self._store.tree.listen(self._session_changed)
        self.events.start()
        self._put("Startup", self._reelect)
        self._standby = asyncio.get_running_loop().call_later(STANDBY_SECONDS, self._prepare_term)

    def _prepare_term(self) -> None:
        """Import the modules of a term early, so that an election does not wait for the import."""
        if not self.is_active:
            asyncio.get_running_loop().run_in_executor(None, _import_term)

    async def close(self) -> None:
        """Complete the running event, resign and stop. The session stays open.

        Does nothing if it is closed already or was never started.
        """
        if not self.events.is_started:
            return
        for timer in (*self._timers.values(), self._standby):
            if timer is not None:
                timer.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.events.call(
                    ControllerState.CONTROLLER_SHUTDOWN, "ControllerShutdown", self._move_controller
                )
        except (TimeoutError, EventCleared, TreeError) as error:
            # The end of the session deletes /controller as well.
            _log.warning("the controller stops without resigning: %r", error)
        await self.events.close()
        self._end_term()

    def _put(self, name: str, process: Callable[[], Awaitable[None]]) -> None:
        self.events.put(ControllerEvent(ControllerState.CONTROLLER_CHANGE, name, process))

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            # No event of the old session may be processed now, because another controller may be elected.
            self.events.clear_and_put(
                ControllerEvent(ControllerState.CONTROLLER_CHANGE, "Expire", self._expire)
            )
            self._put("RegisterBrokerAndReelect", self._register_and_reelect)

    def _controller_changed(self, event: WatchEvent) -> None:
        # Also after a change: the node may be gone when it is read, and no watch reports that.
        name = "Reelect" if event.type is EventType.DELETED else "ControllerChange"
        self._put(name, self._reelect)

    def _later(self, seconds: float, name: str, process: Callable[[], Awaitable[None]]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._put, name, process)

    # --- the election

    async def _expire(self) -> None:
        self.active_controller_id = NO_CONTROLLER
        self._election = ChangeWatch(self._controller_changed)
        self._end_term()

    async def _register_and_reelect(self) -> None:
        try:
            await self._register_broker()
        except SessionExpired:
            raise
        except Exception as error:
            _log.error("broker %d cannot register, trying again: %r", self.broker_id, error)
            self._later(RETRY_SECONDS, "RegisterBrokerAndReelect", self._register_and_reelect)
            return
        await self._reelect()

    async def _maybe_resign(self) -> None:
        """Read the present controller, and resign if it is another broker."""
        controller = await self._store.read_controller(self._election.set())
        self.active_controller_id = NO_CONTROLLER if controller is None else controller
        if self.active_controller_id != self.broker_id:
            self._end_term()

    async def _fenced(self) -> None:
        """Resign after a write that found another controller epoch in the tree."""
        self._end_term()
        await self._store.resign()  # if the epoch was changed by hand, /controller is still this broker's
        await self._reelect()

    async def _reelect(self) -> None:
        """Take part in the election. Repeat it after an unexpected error, because there may be no watch."""
        try:
            await self._try_to_reelect()
        except (Fenced, SessionExpired):
            raise
        except Exception:
            _log.exception("broker %d cannot take part in the election, trying again", self.broker_id)
            self._later(RETRY_SECONDS, "Reelect", self._reelect)

    async def _try_to_reelect(self) -> None:
        try:
            await self._maybe_resign()
            if self.active_controller_id == self.broker_id and self._active is None:
                # An election that began in the last session has written the node in this session. Its term is
                # over.
                await self._store.resign()
                await self._maybe_resign()
            if self.active_controller_id == NO_CONTROLLER:
                await self._elect()
        except KRaftController as error:
            _log.error("this broker cannot be the controller: %s", error)
            self.active_controller_id = NO_CONTROLLER
            self._end_term()

    async def _elect(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            self._later(self._not_before - loop.time(), "Reelect", self._reelect)
            return
        epoch = await self._store.elect(self.broker_id)
        if epoch is None:
            await self._maybe_resign()
            return
        _log.info("broker %d is the controller with epoch %d", self.broker_id, epoch.epoch)
        self.active_controller_id = self.broker_id
        try:
            active = self._active = self._new_term(epoch)
            await active.fail_over()
        except (Fenced, SessionExpired):
            raise
        except Exception:
            _log.exception("broker %d failed to become the controller: another one has to", self.broker_id)
            self._not_before = loop.time() + RETRY_SECONDS
            await self._move_controller()

    def _new_term(self, epoch: ControllerEpoch) -> ActiveController:
        # Imported here, so that a broker starts without these modules.
        from tidelog.controller.active_controller import ActiveController

        def put(state: ControllerState, name: str, process: Callable[[], Awaitable[None]]) -> None:
            async def in_term() -> None:
                if active is self._active:
                    await self._in_term(active, process)

            self.events.put(ControllerEvent(state, name, in_term))

        active = ActiveController(self._parts, epoch, put)
        return active

    async def _in_term(self, active: ActiveController, process: Callable[[], Awaitable[T]]) -> T:
        """Process an event of a term. NotController if the term is over."""
        if active is not self._active:
            raise self._not_controller()
        try:
            return await process()
        except (Fenced, SessionExpired, KafkaError):
            raise
        except Exception:
            if active.term.drop_unsent():
                # The context is ahead of the last requests to the brokers: the next term reads the tree
                # again.
                _log.exception("requests to brokers are lost: the controller resigns")
                await self._move_controller()
            raise

    async def _move_controller(self) -> None:
        """Resign, and let a broker be elected."""
        self._end_term()
        if self.active_controller_id == self.broker_id:
            self.active_controller_id = NO_CONTROLLER
            await self._store.resign()

    def _end_term(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            _log.info("broker %d is no longer the controller", self.broker_id)
            active.resign()

    # --- requests of clients

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[TopicResult]:
        """Create topics independently of each other; one result for each name, in the order of the request.

        Returns when the new partitions have leaders that know it. After `timeout` seconds topics without an
        error get RequestTimedOut, and their creation goes on.
        """
        results = [TopicResult(name) for name in dict.fromkeys(topic.name for topic in topics)]
        return await self._create(
            "CreateTopics",
            results,
            lambda active: active.admin.create_topics(topics, validate_only=validate_only, quota=quota),
            validate_only=validate_only,
            timeout=timeout,
        )

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[PartitionsResult]:
        """Add partitions to topics, independently of each other; `timeout` is as in `create_topics`."""
        results = [PartitionsResult(name) for name in dict.fromkeys(topic.name for topic in topics)]
        return await self._create(
            "CreatePartitions",
            results,
            lambda active: active.admin.create_partitions(topics, validate_only=validate_only, quota=quota),
            validate_only=validate_only,
            timeout=timeout,
        )

    async def _create(
        self,
        name: str,
        unfinished: list[R],
        work: Callable[[ActiveController], Awaitable[list[R]]],
        *,
        validate_only: bool,
        timeout: float | None,
    ) -> list[R]:
        """The results of `work`, once the leaders know the new partitions; `unfinished` after `timeout`."""
        results = unfinished
        try:
            async with asyncio.timeout(timeout):
                results = await self._call(ControllerState.TOPIC_CHANGE, name, work)
                if not validate_only:
                    await self._wait_for_brokers([result.name for result in results if result.error is None])
        except TimeoutError:
            for result in results:
                result.error = result.error or RequestTimedOut()
        return results

    async def delete_topics(
        self,
        topics: Sequence[TopicToDelete],
        *,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[DeletedTopic]:
        """Delete topics independently of each other.

        Returns when the topics are marked for deletion and the brokers know it; `timeout` is as in
        `create_topics`. Their files are deleted when all their brokers are up.
        """
        results = [DeletedTopic(topic.name, topic.topic_id) for topic in topics]
        try:
            async with asyncio.timeout(timeout):
                results = await self._call(
                    ControllerState.TOPIC_DELETION,
                    "DeleteTopics",
                    lambda active: active.admin.delete_topics(topics, quota),
                )
                await self._wait_for_brokers()
        except TimeoutError:
            for result in results:
                result.error = result.error or RequestTimedOut()
        return results

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None,
        election_type: ElectionType,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders, of all partitions if `partitions` is None; returns the error of each partition.

        ElectionNotNeeded for partitions that have the wanted leader already.
        """
        results: dict[TopicPartition, KafkaError | None] = dict.fromkeys(partitions or ())
        try:
            async with asyncio.timeout(timeout):
                results = await self._call(
                    ControllerState.MANUAL_LEADER_BALANCE,
                    "ReplicaLeaderElection",
                    lambda active: active.elections.elect_leaders(partitions, election_type),
                )
                await self._wait_for_brokers({name for (name, _), error in results.items() if error is None})
        except TimeoutError:
            results = {partition: error or RequestTimedOut() for partition, error in results.items()}
        return results

    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move partitions to other replicas, or end that for None; returns the error of each one."""
        return await self._call(
            ControllerState.ALTER_PARTITION_REASSIGNMENT,
            "ApiPartitionReassignment",
            lambda active: active.reassignments.alter(
                wanted, allow_replication_factor_change=allow_replication_factor_change
            ),
        )

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, PartitionState]:
        """The partitions that are being reassigned, of all for None."""

        async def listed(active: ActiveController) -> dict[TopicPartition, PartitionState]:
            return active.reassignments.listed(partitions)

        return await self._call(
            ControllerState.LIST_PARTITION_REASSIGNMENT, "ListPartitionReassignments", listed
        )

    async def _wait_for_brokers(self, topics: Iterable[str] = ()) -> None:
        """Wait for the answers of this broker and the leaders of topics, and briefly for those of others."""
        if self._active is None:
            return
        term = self._active.term
        involved = {self.broker_id}
        for topic in topics:
            for partition in term.context.partitions_of(topic):
                involved.add(term.context.partitions[partition].leader)
        others = [broker_id for broker_id in term.channels.broker_ids if broker_id not in involved]

        async def flush_others() -> None:
            try:
                async with asyncio.timeout(OTHERS_SECONDS):
                    await term.channels.flush(others)
            except TimeoutError:
                _log.info("brokers %s take long to learn of a change", others)

        await asyncio.gather(term.channels.flush(involved), flush_others())

    # --- requests of brokers

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """Write the ISR that a leader asks for; partitions have their own errors.

        Raises StaleBrokerEpoch if the leader registered anew since.
        """
        return await self._call(
            ControllerState.ISR_CHANGE,
            "AlterPartition",
            lambda active: active.partitions.alter_partition(request, version),
        )

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Move the leaderships of a broker that wants to stop. Returns the partitions that it still leads.

        Raises BrokerNotAvailable if the broker is not registered, StaleBrokerEpoch if it registered anew.
        """
        return await self._call(
            ControllerState.CONTROLLED_SHUTDOWN,
            "ControlledShutdown",
            lambda active: active.brokers.controlled_shutdown(broker_id, broker_epoch),
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids. Raises BrokerIdNotRegistered or StaleBrokerEpoch for an unknown broker."""
        return await self._call(
            ControllerState.IDLE,
            "AllocateProducerIds",
            lambda active: active.allocate_producer_ids(broker_id, broker_epoch),
        )

    def unclean_election_enabled(self, topic: str | None = None) -> None:
        """Elect leaders after unclean.leader.election.enable became true, for a topic or for all."""
        if self._active is not None:
            elections = self._active.elections
            if topic is None:
                state, name = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE, "UncleanLeaderElectionEnable"
            else:
                state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE
                name = "TopicUncleanLeaderElectionEnable"
            self._active.term.put(state, name, lambda: elections.enable_unclean_election(topic))

    async def _call(
        self, state: ControllerState, name: str, work: Callable[[ActiveController], Awaitable[T]]
    ) -> T:
        """Process a request as an event of the present term, and return its result."""
        active = self._active
        if active is None:
            raise self._not_controller()
        try:
            return await self.events.call(state, name, lambda: self._in_term(active, lambda: work(active)))
        except (EventCleared, Fenced, SessionExpired) as error:
            raise self._not_controller() from error
        except (TreeError, ValueError) as error:
            raise UnknownServerError(f"The tree is not as expected: {error}") from error

    def _not_controller(self) -> NotController:
        return NotController(f"Broker {self.broker_id} is not the controller.")


def _import_term() -> None:
    import tidelog.controller.active_controller
    import tidelog.protocol.messages.leader_and_isr
    import tidelog.protocol.messages.stop_replica
    import tidelog.protocol.messages.update_metadata  # noqa: F401
