"""BrokerChanges: the controller's events about brokers that join, leave, change or lose a log folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidelog.controller.event_manager import ControllerState
from tidelog.controller.partition_reassignments import PartitionReassignments
from tidelog.controller.partition_state_machine import ElectionStrategy
from tidelog.controller.request_batch import LeaderAndIsrResponseReceived
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.controller.term import ControllerTerm
from tidelog.controller.watches import ChangeWatch
from tidelog.errors import BrokerNotAvailable, ErrorCode, StaleBrokerEpoch
from tidelog.metadata.state import BrokerRegistration
from tidelog.metadata.tree import EventType, WatchEvent
from tidelog.partitions import TopicPartition

_log = logging.getLogger("tidelog.controller")


class BrokerChanges:
    def __init__(self, term: ControllerTerm, reassignments: PartitionReassignments) -> None:
        self._term = term
        self._reassignments = reassignments
        self._context = term.context
        self._registrations = ChangeWatch(self._brokers_changed)
        self._log_dir_events = ChangeWatch(self._log_dir_event)
        self._watch = term.parts.broker_watch
        self._watch.handler = self._broker_modified

    def close(self) -> None:
        self._registrations.close()
        self._log_dir_events.close()
        self._watch.handler = None

    def _brokers_changed(self, _event: WatchEvent) -> None:
        self._term.put(ControllerState.BROKER_CHANGE, "BrokerChange", self.broker_change)

    def _broker_modified(self, event: WatchEvent) -> None:
        if event.type is EventType.CHANGED:
            broker_id = int(event.path.rpartition("/")[2])
            self._term.put(
                ControllerState.BROKER_CHANGE,
                "BrokerModifications",
                lambda: self.broker_modifications(broker_id),
            )

    def _log_dir_event(self, _event: WatchEvent) -> None:
        self._term.put(
            ControllerState.LOG_DIR_CHANGE, "LogDirEventNotification", self.log_dir_event_notification
        )

    # --- the beginning of the term

    async def load(self) -> None:
        """Read the live brokers into the context, and open channels to them."""
        brokers = await self._term.cluster.read_brokers(self._registrations.set(), watch_each=self._watch)
        self._context.set_live_brokers(brokers.values())
        self._term.channels.add_brokers(brokers.values())
        # The notifications from before this term are covered: by the tree that is read, or by the request
        # below.
        events = await self._term.cluster.read_log_dir_events(self._log_dir_events.set())
        await self._term.store.delete_nodes(events.paths)

    # --- brokers that join and leave

    async def broker_change(self) -> None:
        found = await self._term.cluster.read_brokers(self._registrations.set())
        known = self._context.live_or_shutting_down_brokers
        dead = [broker_id for broker_id in known if broker_id not in found]
        new = [broker for broker_id, broker in found.items() if broker_id not in known]
        # The same id with another epoch: the broker was restarted, and may have lost unflushed records.
        bounced = [
            broker
            for broker_id, broker in found.items()
            if broker_id in known and broker.epoch > known[broker_id].epoch
        ]
        if not (new or dead or bounced):
            return
        _log.info(
            "brokers that joined: %s, left: %s, were restarted: %s; live: %s",
            [broker.broker_id for broker in new],
            dead,
            [broker.broker_id for broker in bounced],
            list(found),
        )
        self._term.channels.add_brokers(new)
        for broker in bounced:
            self._term.channels.replace_broker(broker)
        for broker_id in dead:
            self._term.channels.remove_broker(broker_id)
        if new:
            await self._start(new)
        if bounced:
            await self._fail([broker.broker_id for broker in bounced])
            await self._start(bounced)
        if dead:
            await self._fail(dead)

    async def _start(self, brokers: Sequence[BrokerRegistration]) -> None:
        watched = await asyncio.gather(
            *(self._term.cluster.read_broker(broker.broker_id, self._watch) for broker in brokers)
        )
        for broker, newest in zip(brokers, watched, strict=True):
            # If a broker has left meanwhile, the next event handles it.
            if newest is not None and newest.epoch == broker.epoch and newest != broker:
                self._term.channels.replace_broker(newest)  # its address may have changed; nothing is queued
                broker = newest
            self._context.add_live_brokers([broker])
        broker_ids = [broker.broker_id for broker in brokers]
        others = [
            broker_id
            for broker_id in self._context.live_or_shutting_down_brokers
            if broker_id not in broker_ids
        ]
        # The others get the addresses of the new brokers. The new brokers get all metadata before they lead
        # or follow.
        await self._term.send_update_metadata(others)
        await self._term.send_full_metadata(broker_ids)
        await self.bring_online(broker_ids)

    async def bring_online(self, broker_ids: Sequence[int]) -> None:
        """Bring the replicas of brokers online, and resume elections, reassignments and deletions."""
        replicas = self._context.replicas_on_brokers(broker_ids)
        await self._term.replicas.handle_state_changes(replicas, ReplicaStatus.ONLINE)
        await self._term.partitions.trigger_online_state_change()
        await self._delete_removed(broker_ids)
        await self._reassignments.resume_on_brokers(broker_ids)
        waiting = {
            replica.topic: None
            for replica in replicas
            if self._context.is_topic_queued_for_deletion(replica.topic)
        }
        if waiting:
            _log.info("deletions go on, of topics with replicas on brokers %s: %s", broker_ids, [*waiting])
            await self._term.deletion.resume_for_topics(waiting)

    async def _delete_removed(self, broker_ids: Sequence[int]) -> None:
        """Delete the replicas that reassignments removed while their brokers were down."""
        self._term.batch.new_batch()
        for broker_id in broker_ids:
            removed = self._context.removed_replicas.get(broker_id, {})
            for partition in list(removed):
                if broker_id in self._context.replicas(partition):
                    del removed[partition]  # it was assigned again
                else:
                    self._term.batch.add_stop_replica([broker_id], partition, delete=True)
        await self._term.batch.send_requests()

    async def _fail(self, broker_ids: Sequence[int]) -> None:
        self._context.remove_live_brokers(broker_ids)
        await self._term.take_replicas_offline(self._context.replicas_on_brokers(broker_ids))

    async def broker_modifications(self, broker_id: int) -> None:
        """A broker changed its addresses or features."""
        broker = await self._term.cluster.read_broker(broker_id, self._watch)
        known = self._context.live_or_shutting_down_brokers.get(broker_id)
        if broker is None or known is None or broker.epoch != known.epoch or broker == known:
            return
        _log.info("broker %d changed its registration to %s", broker_id, broker)
        listener = self._term.parts.channels.listener
        before, now = known.endpoint(listener), broker.endpoint(listener)
        if before is None and now is not None:
            # Nothing reached it without the listener: it starts anew.
            self._term.channels.add_broker(broker)
            await self._fail([broker_id])
            await self._start([broker])
            return
        if now is None:
            self._term.channels.replace_broker(broker)
        elif before != now:
            self._term.channels.move_broker(broker_id, now)
        self._context.add_live_brokers([broker])
        await self._term.send_update_metadata()

    # --- controlled shutdown

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Move the leaderships of a broker that wants to stop; returns the partitions that it still leads.

        Returns no partitions if no other broker runs, or if all others shut down, too: then no partition can
        get another leader, and the broker would ask again and again.

        Raises BrokerNotAvailable if the broker is not registered, StaleBrokerEpoch if it registered anew.
        """
        context = self._context
        broker = context.live_or_shutting_down_brokers.get(broker_id)
        if broker is None:
            raise BrokerNotAvailable(f"Broker id {broker_id} does not exist.")
        if broker_epoch != -1 and broker_epoch < broker.epoch:
            raise StaleBrokerEpoch(
                f"Controlled shutdown request from an old broker epoch {broker_epoch}: "
                f"the epoch of broker {broker_id} is {broker.epoch}."
            )
        context.begin_shutdown(broker_id)
        await self.move_leaders(broker_id, stops=True)
        remaining = [
            partition
            for partition in context.partitions_with_leader_on(broker_id)
            if len(context.replicas(partition)) > 1
        ]
        _log.info("broker %d shuts down; it still leads %d partitions", broker_id, len(remaining))
        return remaining if context.live_broker_ids else []

    async def move_leaders(self, broker_id: int, *, stops: bool) -> None:
        """Move leaderships to in-sync replicas on other brokers, and take the broker out of the ISRs.

        With `stops` the broker shuts down, and the controller stops all its replicas. Without `stops` the
        broker may answer again, so the controller does not stop its out-of-sync replicas. Their state does
        not change, and the broker would refuse to start a replica again with a state that it knows.
        """
        context = self._context
        led: list[TopicPartition] = []
        followed: list[TopicPartition] = []
        for partition in context.partitions_on_broker(broker_id):
            state = context.leadership(partition)
            if (
                state is None
                or len(state.replicas) <= 1
                or context.is_topic_queued_for_deletion(partition.topic)
            ):
                continue
            if state.leader == broker_id:
                led.append(partition)
            elif stops or broker_id in state.isr:
                followed.append(partition)
        await self._term.partitions.handle_state_changes(
            led, PartitionStatus.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        if followed:
            self._term.batch.new_batch()
            for partition in followed:
                self._term.batch.add_stop_replica([broker_id], partition, delete=False)
            await self._term.batch.send_requests()
            # The broker leaves the ISR before it stops, so that nobody waits for it.
            await self._term.replicas.handle_state_changes(
                [PartitionAndReplica(*partition, broker_id) for partition in followed],
                ReplicaStatus.OFFLINE,
            )

    # --- failed log folders

    async def log_dir_event_notification(self) -> None:
        events = await self._term.cluster.read_log_dir_events(self._log_dir_events.set())
        try:
            live = [broker for broker in events.subjects if self._context.broker_epoch(broker) != -1]
            if live:
                _log.info("log folders of brokers %s failed", live)
                # The answers name the lost replicas.
                replicas = self._context.replicas_on_brokers(live)
                await self._term.replicas.handle_state_changes(replicas, ReplicaStatus.ONLINE)
        finally:
            await self._term.store.delete_nodes(events.paths)

    async def leader_and_isr_response_received(self, event: LeaderAndIsrResponseReceived) -> None:
        if event.error_code != ErrorCode.NONE:
            _log.error("broker %d refused LeaderAndIsr with error %d", event.broker_id, event.error_code)
            return
        offline: list[TopicPartition] = []
        online: list[TopicPartition] = []
        for partition, code in event.partition_errors.items():
            if partition not in self._context.partitions:
                continue  # deleted since
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                offline.append(partition)
            elif code == ErrorCode.NONE:
                online.append(partition)
        known = self._context.offline_replicas_of_broker.get(event.broker_id, set())
        back = [partition for partition in online if partition in known]
        newly = self._context.update_offline_replicas(event.broker_id, offline=offline, online=online)
        if newly:
            _log.info("replicas in failed log folders of broker %d: %s", event.broker_id, newly)
            await self._term.take_replicas_offline(
                [PartitionAndReplica(*partition, event.broker_id) for partition in newly]
            )
        if back:
            _log.info("replicas of broker %d are back: %s", event.broker_id, back)
            await self._term.partitions.trigger_online_state_change()
            await self._term.deletion.resume_for_topics({partition.topic: None for partition in back})
