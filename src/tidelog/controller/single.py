"""SingleController: the controller of a cluster with one broker.

Changes are made one after the other. A change is checked against the snapshot on the loop, then written to
the tree in a worker thread (a disk sync takes longer than a request), then passed to the host, which creates
logs and syncs deletions off the loop. A change that has begun is completed even if its client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tidelog.clock import Clock, SystemClock
from tidelog.controller import config_changes, validation
from tidelog.controller.election import elect, first_state, go_offline, lead_anew
from tidelog.controller.interface import (
    HAVE_DEFAULTS,
    ZERO_ID,
    ConfigChange,
    ConfigEntity,
    ConfigKind,
    ConfigRules,
    DeletedTopic,
    EntityConfigListener,
    LogsOfTopic,
    MutationQuota,
    NewPartitions,
    NewTopic,
    PartitionHost,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.controller.planning import ControllerSettings, Planner
from tidelog.endpoints import Endpoint
from tidelog.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    NotController,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.operations import Fenced
from tidelog.metadata.state import (
    DEFAULT_ENTITY,
    NO_STATE_NODE,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    TopicState,
)
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import Tree, TreeError, TreeUnavailable
from tidelog.slices import finished

T = TypeVar("T")

_log = logging.getLogger("tidelog.controller")

SECONDS_A_TURN = 0.005
"""How long the creation or deletion of topics may keep the loop from other requests at a time."""


class SingleController:
    """Implements tidelog.controller.interface.Controller.

    After a change, its partitions are led and in `state`.
    """

    retry_seconds = 5.0  # the wait before a log that lacked room on the disk is created again

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        config_rules: ConfigRules,
        *,
        settings: ControllerSettings | None = None,
        on_entity_config: EntityConfigListener | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.settings = settings or ControllerSettings()
        self._store = store
        self._rules = config_rules
        self._on_entity_config = on_entity_config
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._state = ClusterState("")
        self._deleting: dict[str, TopicState] = {}
        self._host: PartitionHost | None = None
        self._lock = asyncio.Lock()
        self._turn_ends = 0.0
        self._running: set[asyncio.Task[object]] = set()
        self._without_log: set[tuple[str, int]] = set()
        self._retry: asyncio.TimerHandle | None = None
        # One thread, because the tree takes one change at a time. It starts with the first call.
        self._worker = ThreadPoolExecutor(1, "tidelog-controller")

    @property
    def state(self) -> ClusterState:
        """The cluster after the last change, an immutable snapshot."""
        return self._state

    # --- start and stop

    async def load(self) -> ClusterState:
        """First: become the controller, read the tree, and elect leaders for partitions without one."""
        self._state, self._deleting = await self._in_worker(self._load)
        return self._state

    def _load(self) -> tuple[ClusterState, dict[str, TopicState]]:
        self._store.prepare()
        cluster_id = self._store.cluster_id()
        epoch = self._store.elect(self.broker_id)
        topics = self._store.read_topics()
        marked = self._store.marked_for_deletion()
        # A deletion mark without a topic is left by a crash between the last two steps of a deletion.
        deleting = {name: topics.pop(name, TopicState(name, ZERO_ID, {})) for name in marked}
        for topic in topics.values():
            self._elect_leaders(topic, epoch)
        empty = ClusterState(cluster_id, self.broker_id, epoch)
        empty.entity_configs = self._store.read_entity_configs()
        return empty.with_topics(topics.values()), deleting

    def _elect_leaders(self, topic: TopicState, epoch: int) -> None:
        """Elect leaders for partitions that never had one, or whose leader is another broker."""
        live = {self.broker_id}
        chosen: dict[int, PartitionState] = {}
        for index, state in topic.partitions.items():
            if state.partition_epoch == NO_STATE_NODE:
                made = first_state(state.replicas, live, epoch)
                chosen[index] = replace(made, partition_epoch=NO_STATE_NODE)
                continue
            unclean = self._unclean_allowed(topic)
            elected = elect(state, live, epoch, unclean=unclean)
            if elected is not None:
                chosen[index] = elected
        if chosen:
            self._store.write_partitions(topic.name, chosen)
            topic.partitions.update(chosen)

    def _unclean_allowed(self, topic: TopicState) -> bool:
        value = topic.configs.get("unclean.leader.election.enable")
        return self.settings.unclean_leader_election_enable if value is None else value.lower() == "true"

    async def raise_leader_epochs(self, partitions: Collection[tuple[str, int]]) -> None:
        """Give these partitions a new leader epoch: their logs may have lost their ends in a crash.

        A client with the old epoch asks for its end offset, and notices the lost records. To be called before
        `activate`.
        """
        raised: dict[str, dict[int, PartitionState]] = {}
        for name, index in partitions:
            state = self._state.partition(name, index)
            anew = lead_anew(state, self.broker_id, self._state.controller_epoch) if state else None
            if anew is not None:
                raised.setdefault(name, {})[index] = anew
        if not raised:
            return
        await self._in_worker(lambda: self._store.write_partitions_of(raised))
        topics = [self._state.topics[name] for name in raised]
        self._state = self._state.with_topics(
            [replace(topic, partitions=topic.partitions | raised[topic.name]) for topic in topics]
        )

    async def register(self, endpoints: Sequence[Endpoint], rack: str | None = None) -> BrokerRegistration:
        """Second: register this broker with its advertised addresses."""
        node = BrokerNode(list(endpoints), self._clock.ms(), rack)
        broker = await self._in_worker(lambda: self._store.register_broker(self.broker_id, node))
        self._publish(self._state.with_brokers({**self._state.brokers, self.broker_id: broker}))
        return broker

    async def activate(self, host: PartitionHost) -> None:
        """Third: let the host lead its partitions, and complete deletions that a crash interrupted."""
        self._host = host
        async with self._lock:
            await self._lead({name: topic.partitions for name, topic in self._state.topics.items()})
            await self._finish_deletions(list(self._deleting.values()))
        self._publish(self._state)

    async def close(self) -> None:
        """Complete the running change and stop. The tree stays open."""
        while self._running:
            await asyncio.wait(self._running)
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.to_thread(self._worker.shutdown)

    # --- making topics

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[TopicResult]:
        return await self._one_at_a_time(self._create_topics(topics, validate_only, quota))

    async def _create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, quota: MutationQuota | None
    ) -> list[TopicResult]:
        results, made = await finished(self._planner(None if validate_only else quota).topics(topics))
        if not validate_only and made:
            error = await self._write(lambda: self._store.create_topics(made))
            if error is not None:
                names = {topic.name for topic in made}
                return [TopicResult(r.name, error=error) if r.name in names else r for r in results]
            self._state = self._state.with_topics(made)
            await self._lead({topic.name: topic.partitions for topic in made})
            self._publish(self._state)
        return results

    # --- deleting topics

    async def delete_topics(
        self, topics: Sequence[TopicToDelete], *, quota: MutationQuota | None = None
    ) -> list[DeletedTopic]:
        return await self._one_at_a_time(self._delete_topics(topics, quota))

    async def _delete_topics(
        self, topics: Sequence[TopicToDelete], quota: MutationQuota | None
    ) -> list[DeletedTopic]:
        results, doomed = await finished(self._planner(quota).deletions(topics))
        if not doomed:
            return results
        names = [topic.name for topic in doomed]
        error = await self._write(lambda: self._store.mark_for_deletion(names))
        if error is not None:
            return [replace(r, error=r.error or error) for r in results]
        # Nothing can bring marked topics back, so clients get their answer before the files are deleted.
        self._deleting.update((topic.name, topic) for topic in doomed)
        self._publish(self._state.with_topics(removed=names))
        await self._finish_deletions(doomed)
        return results

    async def _finish_deletions(self, topics: Sequence[TopicState]) -> None:
        """Remove logs, then nodes. The marks of failed deletions stay in the tree for the next start."""
        assert self._host is not None
        gone = [topic.name for topic in topics if await self._delete_logs(topic)]
        if not gone:
            return
        try:
            await self._host.sync_deletions()
        except KafkaError as error:
            _log.error("topics %s are deleted, but stay marked for now: %s", ", ".join(gone), error)
            return
        for name in gone:
            await self._remove_nodes(name)

    async def _delete_logs(self, topic: TopicState) -> bool:
        """Remove the logs of a topic; returns whether all of them are removed."""
        assert self._host is not None
        failed: list[int] = []
        for index in topic.partitions:
            try:
                self._host.delete_partition(topic.name, index)
            except KafkaError as error:
                _log.error("%s-%d is marked for deletion, but its log stays: %s", topic.name, index, error)
                failed.append(index)
            await self._give_way()
        return not failed

    async def _remove_nodes(self, name: str) -> None:
        failure = await self._write(lambda: self._store.remove_topic(name))
        if failure is not None:
            _log.error("topic %s is deleted, but its nodes stay for now: %s", name, failure)
            return
        self._deleting.pop(name, None)

    # --- more partitions

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[PartitionsResult]:
        return await self._one_at_a_time(self._create_partitions(topics, validate_only, quota))

    async def _create_partitions(
        self, topics: Sequence[NewPartitions], validate_only: bool, quota: MutationQuota | None
    ) -> list[PartitionsResult]:
        results, grown = await finished(self._planner(None if validate_only else quota).growth(topics))
        if validate_only or not grown:
            return results
        error = await self._write(lambda: self._store.add_partitions(grown))
        if error is not None:
            return [replace(result, error=result.error or error) for result in results]
        before = self._state
        self._state = before.with_topics(grown)
        added: dict[str, dict[int, PartitionState]] = {}
        for topic in grown:
            known = before.topics[topic.name].partitions
            new = {index: state for index, state in topic.partitions.items() if index not in known}
            added[topic.name] = new
        await self._lead(added)
        self._publish(self._state)
        return results

    # --- settings

    async def alter_configs(
        self, entity: ConfigEntity, configs: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> None:
        def after(_present: Mapping[str, str]) -> dict[str, str]:
            return config_changes.replaced(configs)

        await self._one_at_a_time(self._alter(entity, after, validate_only))

    async def incremental_alter_configs(
        self, entity: ConfigEntity, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        def after(present: Mapping[str, str]) -> dict[str, str]:
            return config_changes.changed(present, changes, entity, self._rules)

        await self._one_at_a_time(self._alter(entity, after, validate_only))

    async def _alter(
        self, entity: ConfigEntity, after: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        stored = self._present_configs(entity)
        present = self._rules.decoded(entity, stored)
        configs = after(present)
        self._rules.validate(entity, configs)
        if validate_only or configs == present:
            return
        configs = self._rules.encoded(entity, configs, stored)
        await self._changed(lambda: self._store.write_config(entity.path, configs))
        if entity.kind == ConfigKind.TOPIC:
            self._state = self._state.with_topics([replace(self._state.topics[entity.name], configs=configs)])
            if self._host is not None:
                self._host.update_topic_config(entity.name, dict(configs))
        else:
            self._state = self._state.with_entity_configs(entity.path, configs)
            if self._on_entity_config is not None:
                self._on_entity_config(entity, dict(configs))
        self._publish(self._state)

    async def change_entity_configs(
        self, entity_path: str, after: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> None:
        await self._one_at_a_time(self._change_entity(entity_path, after))

    async def _change_entity(
        self, entity_path: str, after: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> None:
        present = self._state.entity_configs.get(entity_path, {})
        configs = after(present)
        if configs != present:
            await self._changed(lambda: self._store.write_config(entity_path, configs))
            self._publish(self._state.with_entity_configs(entity_path, configs))

    async def entity_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._state.entity_configs

    def _present_configs(self, entity: ConfigEntity) -> Mapping[str, str]:
        if entity.kind not in HAVE_DEFAULTS and entity.name in ("", DEFAULT_ENTITY):
            raise InvalidRequest(f"There are no settings for all {entity.kind} that have none of their own.")
        if entity.kind == ConfigKind.TOPIC:
            validation.check_topic_name(entity.name)
            topic = self._state.topics.get(entity.name)
            if topic is None:
                raise UnknownTopicOrPartition(f"There is no topic '{entity.name}'.")
            return topic.configs
        if entity.kind == ConfigKind.BROKER and entity.name not in (DEFAULT_ENTITY, str(self.broker_id)):
            raise InvalidRequest(
                f"Settings of broker '{entity.name}' cannot be changed here: this is broker {self.broker_id}."
            )
        return self._state.entity_configs.get(entity.path, {})

    # --- producer ids and lost disks

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that was never allocated before."""
        return await self._changed(lambda: self._store.allocate_producer_ids(self.broker_id))

    async def partitions_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Take the partitions of a failed log folder offline: they have no leader until the next start."""
        await self._one_at_a_time(self._take_offline(partitions))

    async def _take_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        lost: dict[str, dict[int, PartitionState]] = {}
        for name, index in partitions:
            state = self._state.partition(name, index)
            offline = go_offline(state, self.broker_id, self._state.controller_epoch) if state else None
            if offline is not None:
                lost.setdefault(name, {})[index] = offline
        for name, states in lost.items():
            await self._replace_states(self._state.topics[name], states)
        if lost:
            self._publish(self._state)

    async def _replace_states(self, topic: TopicState, states: dict[int, PartitionState]) -> None:
        """Replace the states of offline partitions in the snapshot, even if the tree cannot be written."""
        error = await self._write(lambda: self._store.write_partitions(topic.name, states))
        if error is not None:
            _log.error("offline partitions %s of %s stay so in memory only", list(states), topic.name)
        changed = replace(topic, partitions=topic.partitions | states)
        self._state = self._state.with_topics([changed])

    # --- how changes are made

    async def _lead(self, topics: Mapping[str, Mapping[int, PartitionState]]) -> None:
        """Let the host lead the partitions whose leader is this broker."""
        if self._host is None:
            return
        ours = {
            name: {index: state for index, state in partitions.items() if state.leader == self.broker_id}
            for name, partitions in topics.items()
        }
        self._lead_later(await self._host.make_logs(self._logs_of(ours)))
        for name, partitions in ours.items():
            failed = await self._lead_topic(self._state.topics[name], partitions)
            if failed:
                await self._replace_states(self._state.topics[name], failed)

    def _logs_of(self, topics: Mapping[str, Mapping[int, PartitionState]]) -> list[LogsOfTopic]:
        known = self._state.topics
        return [LogsOfTopic(name, known[name].topic_id, list(states)) for name, states in topics.items()]

    async def _lead_topic(
        self, topic: TopicState, partitions: Mapping[int, PartitionState]
    ) -> dict[int, PartitionState]:
        """Lead partitions; returns the states of those that failed."""
        assert self._host is not None
        failed: dict[int, PartitionState] = {}
        for index, state in partitions.items():
            try:
                self._host.become_leader(topic.name, topic.topic_id, index, state)
            except KafkaError as error:
                _log.error("partition %s-%d is offline: %s", topic.name, index, error)
                offline = go_offline(state, self.broker_id, self._state.controller_epoch)
                if offline is not None:
                    failed[index] = offline
            await self._give_way()
        return failed

    def _lead_later(self, without_log: Collection[tuple[str, int]]) -> None:
        """Retry later to lead partitions whose logs lacked room on the disk. They are offline until then."""
        self._without_log.update(without_log)
        if self._without_log and self._retry is None:
            call_later = asyncio.get_running_loop().call_later
            self._retry = call_later(self.retry_seconds, lambda: self._begin(self._lead_those_without_log()))

    async def _lead_those_without_log(self) -> None:
        assert self._host is not None
        self._retry, offline = None, self._without_log
        self._without_log = set()
        elected: dict[str, dict[int, PartitionState]] = {}
        for name, index in sorted(offline):
            state = self._state.partition(name, index)
            leading = elect(state, {self.broker_id}, self._state.controller_epoch) if state else None
            if leading is not None:
                elected.setdefault(name, {})[index] = leading
        # First the logs: only partitions with a log are written to the tree.
        still_without_log = await self._host.make_logs(self._logs_of(elected))
        led: dict[str, dict[int, PartitionState]] = {}
        for name, states in elected.items():
            possible = {
                index: state for index, state in states.items() if (name, index) not in still_without_log
            }
            if not possible:
                continue
            if await self._write(partial(self._store.write_partitions, name, possible)) is not None:
                still_without_log.update((name, index) for index in possible)
                continue
            topic = self._state.topics[name]
            self._state = self._state.with_topics([replace(topic, partitions=topic.partitions | possible)])
            led[name] = possible
        if led:
            await self._lead(led)
            self._publish(self._state)
        self._lead_later(still_without_log)

    def _publish(self, state: ClusterState) -> None:
        self._state = state
        if self._host is not None:
            self._host.metadata_changed(state)

    def _planner(self, quota: MutationQuota | None) -> Planner:
        return Planner(self._state, self._deleting.keys(), self.settings, self._rules, self._rng, quota)

    async def _one_at_a_time(self, change: Coroutine[object, object, T]) -> T:
        """Make a change after the earlier changes. It is completed even if the caller is cancelled."""
        return await asyncio.shield(self._begin(change))

    def _begin(self, change: Coroutine[object, object, T]) -> asyncio.Task[T]:
        async def locked() -> T:
            async with self._lock:
                return await change

        task = asyncio.create_task(locked())
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, because the caller may be cancelled

    async def change_tree(self, work: Callable[[Tree], T]) -> T:
        """Read or change nodes of the tree that no topic, broker or setting has. Raises KafkaError."""
        return await self._changed(lambda: work(self._store.tree))

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def _changed(self, work: Callable[[], T]) -> T:
        """Change the tree; raises the client's error if nothing was changed."""
        try:
            return await self._in_worker(work)
        except Fenced as error:
            raise NotController(str(error)) from error
        except TreeUnavailable as error:
            _log.error("the tree cannot be changed: %s", error)
            raise KafkaStorageError(f"The tree cannot be changed: {error}") from error
        except (TreeError, ValueError) as error:
            _log.exception("the tree is not as this controller left it")
            raise UnknownServerError(f"The tree is not as expected: {error}") from error

    async def _write(self, work: Callable[[], None]) -> KafkaError | None:
        """Change the tree; returns the client's error if nothing was changed."""
        try:
            await self._changed(work)
        except KafkaError as error:
            return error
        return None

    async def _give_way(self) -> None:
        if self._clock.monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = self._clock.monotonic() + SECONDS_A_TURN
