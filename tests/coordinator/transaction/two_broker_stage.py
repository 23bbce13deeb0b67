"""The stage of transactions on two brokers: the same requests, which go to the present leaders."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from tests.cluster.world import Fetched, want, without_session
from tests.coordinator.transaction.stage import (
    DATA,
    DEFAULTS,
    TOPIC,
    Answer,
    Ids,
    appended_when_verified,
    transactional_batch,
    values_of,
)
from tests.coordinator.transaction.stage import loaded_from as metadata_in
from tests.coordinator.two_brokers import Node, TwoBrokers
from tidelog.cluster.fetch import FetchParams
from tidelog.config.values import ConfigValue
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import LocalMarkers
from tidelog.coordinator.transaction.remote_markers import RemoteMarkers
from tidelog.coordinator.transaction.remote_verification import RemoteVerification
from tidelog.coordinator.transaction.settings import TransactionSettings
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import Metadata, ProducerIdAndEpoch
from tidelog.coordinator.transaction.verification import TransactionVerification
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.server.apis.transactions import add_partitions_to_txn, write_txn_markers
from tidelog.server.audit import AuditLog

T = TypeVar("T")

LOG = (TOPIC, 0)
ADD_PARTITIONS, WRITE_MARKERS = 24, 27


class TransactionNode:
    """The transaction coordinator of one broker."""

    def __init__(self, node: Node, ids: Ids, values: dict[str, ConfigValue]) -> None:
        self.node = node
        settings = TransactionSettings(values.__getitem__)
        scheduler = node.cluster.scheduler
        self.local = LocalMarkers(node.replicas, scheduler, lambda: None, lambda: settings.append_timeout_ms)
        self.markers = RemoteMarkers(
            node.broker_id,
            self.local,
            node.metadata,
            scheduler,
            node.transport,
            node.endpoint_of,
            lambda: settings.append_timeout_ms,
        )
        self.coordinator = TransactionCoordinator(
            node.replicas, node.metadata, scheduler, settings, ids, self.markers, self.local
        )
        self.remote = RemoteVerification(
            node.metadata, node.transport, node.endpoint_of, lambda: settings.append_timeout_ms
        )
        self.verification = TransactionVerification(self.coordinator, node.replicas, self.remote)
        node.coordinators[TOPIC] = self.coordinator.runtime
        node.handlers[ADD_PARTITIONS] = self._serve(add_partitions_to_txn)
        node.handlers[WRITE_MARKERS] = self._serve(write_txn_markers)
        self.coordinator.start()

    def _serve(self, handler: Any) -> Any:
        def serve(node: Node, request: SimpleNamespace, body: Message) -> Generator[None, None, Any]:
            services = SimpleNamespace(
                authorizer=None,
                audit=AuditLog(),
                transactions=self.coordinator,
                metadata=node.metadata,
                respond=lambda request, answer: request.respond(answer),
            )
            return handler(services, request, body)

        return serve

    def close(self) -> None:
        self.coordinator.close()
        self.markers.close()
        self.remote.close()


class TwoBrokerStage:
    """Like TransactionStage, for two brokers. `world` is the brokers."""

    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        *,
        partitions: int = 3,
        settings: dict[str, ConfigValue] | None = None,
    ) -> None:
        self.world = TwoBrokers(folder, seed, {DATA: partitions, TOPIC: 1})
        self.values = DEFAULTS | (settings or {})
        self.ids = Ids()
        self.on = [
            self.world.in_loop(lambda node=node: TransactionNode(node, self.ids, self.values))  # type: ignore[misc]
            for node in self.world.nodes
        ]
        self.answers: list[Answer] = []
        for key in self.world.partitions:
            self.world.elect(key, self.world.random.randrange(2))
        self.world.advance(0.1)

    def close(self) -> None:
        for node in self.on:
            self.world.in_loop(node.close)
        self.world.close()

    # -- moves -------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self.on[self.world.partitions[LOG].leader].coordinator

    @property
    def shard(self) -> TransactionShard:
        return self.coordinator.runtime.shard(0)

    def restart(self) -> None:
        """The coordinator moves, often while its follower lags; or a leader of data does."""
        random = self.world.random
        if random.random() < 0.3:
            self._move((DATA, random.randrange(self.world.topics[DATA])))
        else:
            self._move(LOG)

    def _move(self, key: PartitionKey) -> None:
        random = self.world.random
        target = random.randrange(2)
        if random.random() < 0.3:
            self._elect(key, target)
            return
        # What is written from now on is not committed, and lost if the follower is elected.
        stalled = random.choice([0.1, 0.5, 2.0, 5.0])
        self.world.stall(key, stalled * 1.5)
        if random.random() < 0.8:
            self.world.scheduler.schedule(stalled, lambda: self._elect(key, target))

    def _elect(self, key: PartitionKey, target: int) -> None:
        if self.world.random.random() < 0.5:
            self.world.forget_metadata(target)
        self.world.elect(key, target)

    def loaded_anew(self) -> dict[str, Metadata]:
        return metadata_in(self.world.leader(LOG).log(LOG))

    def known(self, transactional_id: str = "id") -> Metadata:
        return self.shard.transactions[transactional_id].metadata

    # -- requests ----------------------------------------------------------------------------------

    def _answer(self) -> Answer:
        answer = Answer()
        self.answers.append(answer)
        return answer

    def _ended(self, answer: Answer) -> Answer:
        """Outside of a schedule nobody waits: let the replicas follow."""
        if not self.world.is_running:
            self.world.advance(0.3)
        return answer

    def init(
        self,
        transactional_id: str = "id",
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] | None = None,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Answer:
        answer = self._answer()
        self.world.in_loop(
            lambda: self.coordinator.init_producer_id(
                transactional_id,
                timeout_ms,
                None if expected is None else ProducerIdAndEpoch(*expected),
                answer.done,
                answer.failed,
                enable_two_phase=two_phase,
                keep_prepared=keep,
            )
        )
        return self._ended(answer)

    def add(
        self,
        producer: tuple[int, int],
        indexes: Iterable[int] = (0,),
        *,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer:
        answer = self._answer()
        partitions = frozenset((DATA, index) for index in indexes)
        self.world.in_loop(
            lambda: self.coordinator.add_partitions(
                transactional_id, *producer, partitions, version, answer.ended
            )
        )
        return self._ended(answer)

    def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool = True,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer:
        answer = self._answer()
        self.world.in_loop(
            lambda: self.coordinator.end_transaction(
                transactional_id,
                *producer,
                commit=commit,
                client_version=version,
                done=answer.done,
                failed=answer.failed,
            )
        )
        return self._ended(answer)

    def produce(
        self,
        producer: tuple[int, int],
        value: bytes = b"v",
        *,
        index: int = 0,
        sequence: int = 0,
        transactional_id: str = "id",
        version: int = 11,
    ) -> Answer:
        answer = self._answer()
        node = self.on[self.world.partitions[DATA, index].leader]
        partition = node.node.replicas.partition(DATA, index)
        data = transactional_batch(producer, value, sequence, self.world.now_ms)

        verified = appended_when_verified(node.node.replicas, partition, data, answer, timeout_ms=3_000)
        self.world.in_loop(
            lambda: node.verification.check_produce(
                transactional_id, *producer, {partition: sequence}, version, verified
            )
        )
        return self._ended(answer)

    # -- what readers see --------------------------------------------------------------------------

    def committed(self, index: int = 0) -> list[bytes]:
        fetched = Fetched()
        params = FetchParams(0, 1, 1 << 20, 1)
        leader = self.world.leader((DATA, index))
        self.world.in_loop(
            lambda: leader.fetcher.fetch(without_session([want(DATA, index)]), params, fetched)
        )
        return values_of(fetched)

    def is_stable(self, index: int) -> bool:
        log = self.world.leader((DATA, index)).log((DATA, index))
        return log.last_stable_offset == log.log_end_offset
