"""A transaction coordinator over real logs, in simulated time, with a few partitions of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.world import SELF, Fetched, World, want
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import AppendOutcome, ReplicaManager
from tidelog.config.values import ConfigValue
from tidelog.coordinator.transaction.coordinator import TOPIC, Initialized, TransactionCoordinator
from tidelog.coordinator.transaction.markers import LocalMarkers, MarkerChannel
from tidelog.coordinator.transaction.settings import TransactionSettings
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import Metadata, ProducerIdAndEpoch
from tidelog.coordinator.transaction.verification import TransactionVerification
from tidelog.errors import KafkaError
from tidelog.metadata.state import ClusterState, PartitionState, TopicState
from tidelog.partitions import PartitionKey
from tidelog.records.batch import Record, build_batch, iter_batches, read_records
from tidelog.storage.append import AppendOrigin
from tidelog.storage.log import Log
from tidelog.storage.producer_state_manager import Verification

DATA = "t"
OnVerified = Callable[[dict[Partition, KafkaError], dict[Partition, Verification]], None]
DEFAULTS: dict[str, ConfigValue] = {
    "transaction.max.timeout.ms": 900_000,
    "transaction.two.phase.commit.enable": True,
    "transaction.partition.verification.enable": True,
    "transactional.id.expiration.ms": 604_800_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "add.partitions.to.txn.retry.backoff.ms": 20,
    "add.partitions.to.txn.retry.backoff.max.ms": 100,
    "request.timeout.ms": 30_000,
    "transaction.state.log.load.buffer.size": 1 << 20,
}


class Ids:
    """Producer ids one after the other."""

    def __init__(self) -> None:
        self.last = 99

    def request(self, done: Callable[[int], None], failed: Callable[[KafkaError], None]) -> None:
        self.last += 1
        done(self.last)


class Answer:
    """What a request was answered with; `kind` is the error's class or None."""

    def __init__(self) -> None:
        self.is_there = False
        self.error: KafkaError | None = None
        self.value: object = None

    def done(self, value: object = None) -> None:
        assert not self.is_there, "answered twice"
        self.is_there, self.value = True, value

    def failed(self, error: KafkaError) -> None:
        self.done()
        self.error = error

    def ended(self, error: KafkaError | None) -> None:
        if error is None:
            self.done()
        else:
            self.failed(error)

    @property
    def kind(self) -> type[KafkaError] | None:
        assert self.is_there, "not answered"
        return None if self.error is None else type(self.error)


class TransactionStage:
    def __init__(
        self,
        folder: Path,
        *,
        partitions: int = 3,
        settings: dict[str, ConfigValue] | None = None,
        channel: Callable[[MarkerChannel], MarkerChannel] = lambda inner: inner,
    ) -> None:
        self.world = World(folder)
        self.values = DEFAULTS | (settings or {})
        self.metadata = MetadataCache("cluster")
        self.ids = Ids()
        self._channel = channel
        verified = bool(self.values["transaction.partition.verification.enable"])
        self.data = [
            self.world.partition(DATA, index, transaction_verification_enable=verified)
            for index in range(partitions)
        ]
        self.leader_epoch = -1
        self.topics = {DATA: partitions, TOPIC: 1}
        self.know_topics()
        self.start()

    def know_topics(self) -> None:
        state = PartitionState([SELF], SELF, 0, [SELF])
        self.metadata.update(
            ClusterState("cluster").with_topics(
                [
                    TopicState(name, name.encode()[:16].ljust(16, b"-"), dict.fromkeys(range(count), state))
                    for name, count in self.topics.items()
                ]
            )
        )

    def start(self) -> None:
        """A coordinator that loads what is in the log, as after an election."""
        self.leader_epoch += 1
        self.log_partition = self.world.partition(TOPIC, leader_epoch=self.leader_epoch)
        settings = TransactionSettings(self.values.__getitem__)
        local = LocalMarkers(self.world.replicas, self.world.scheduler, lambda: None, lambda: 30_000)
        self.coordinator = TransactionCoordinator(
            self.world.replicas,
            self.metadata,
            self.world.scheduler,
            settings,
            self.ids,
            self._channel(local),
        )
        self.verification = TransactionVerification(self.coordinator, self.world.replicas)
        self.coordinator.runtime.elected(self.log_partition)
        self.coordinator.start()

    def look_seldom(self) -> None:
        """Look for overdue transactions once an hour, for tests in which days pass."""
        self.values["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = 3_600_000

    def restart(self) -> None:
        """The coordinator is gone, with all that was only in its memory, and another one is elected."""
        self.coordinator.close()
        self.start()

    def loaded_anew(self) -> dict[str, Metadata]:
        """What a coordinator that loads the log now has of every id."""
        return loaded_from(self.log_partition.leader_log())

    def close(self) -> None:
        self.coordinator.close()
        self.world.close()

    @property
    def shard(self) -> TransactionShard:
        return self.coordinator.runtime.shard(0)

    def known(self, transactional_id: str = "id") -> Metadata:
        return self.shard.transactions[transactional_id].metadata

    # -- requests ----------------------------------------------------------------------------------

    def init(
        self,
        transactional_id: str = "id",
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] | None = None,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Answer:
        answer = Answer()
        self.coordinator.init_producer_id(
            transactional_id,
            timeout_ms,
            None if expected is None else ProducerIdAndEpoch(*expected),
            answer.done,
            answer.failed,
            enable_two_phase=two_phase,
            keep_prepared=keep,
        )
        return answer

    def producer(self, transactional_id: str = "id", **more: bool) -> ProducerIdAndEpoch:
        """A new producer of an id, whatever was open before."""
        for _ in range(3):
            answer = self.init(transactional_id, **more)
            self.world.advance(0.2)
            if answer.error is None:
                assert isinstance(answer.value, Initialized)
                return answer.value.producer
        raise AssertionError(f"no producer id: {answer.error!r}")

    def add(
        self,
        producer: tuple[int, int],
        indexes: Iterable[int] = (0,),
        *,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer:
        answer = Answer()
        partitions = frozenset((DATA, index) for index in indexes)
        self.coordinator.add_partitions(transactional_id, *producer, partitions, version, answer.ended)
        return answer

    def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool = True,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer:
        answer = Answer()
        self.coordinator.end_transaction(
            transactional_id,
            *producer,
            commit=commit,
            client_version=version,
            done=answer.done,
            failed=answer.failed,
        )
        return answer

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
        """A transactional batch on its whole way: verified (or added, from version 12 on), then appended."""
        answer = Answer()
        partition = self.data[index]
        data = transactional_batch(producer, value, sequence, self.world.scheduler.clock.ms())

        verified = appended_when_verified(self.world.replicas, partition, data, answer)
        self.verification.check_produce(transactional_id, *producer, {partition: sequence}, version, verified)
        return answer

    # -- what readers see --------------------------------------------------------------------------

    def committed(self, index: int = 0) -> list[bytes]:
        """The values that a read_committed consumer gets, by the rules that consumers follow."""
        return values_of(self.world.fetch([want(DATA, index)], isolation_level=1, max_wait_ms=0))

    def is_stable(self, index: int) -> bool:
        """Whether no transaction is open in a partition."""
        log = self.data[index].leader_log()
        return log.last_stable_offset == log.log_end_offset


def appended_when_verified(
    replicas: ReplicaManager, partition: Partition, data: bytes, answer: Answer, timeout_ms: int = 30_000
) -> OnVerified:
    """Appends a batch once its transaction is verified, and ends the answer."""

    def appended(outcomes: list[AppendOutcome]) -> None:
        error = outcomes[0].error
        assert error is None or isinstance(error, KafkaError)
        answer.ended(error)

    def verified(errors: dict[Partition, KafkaError], guards: dict[Partition, Verification]) -> None:
        if errors:
            answer.failed(errors[partition])
            return
        replicas.append(
            [(partition, memoryview(bytearray(data)))],
            acks=-1,
            timeout_ms=timeout_ms,
            heavy=False,
            allow_zstd=True,
            origin=AppendOrigin.CLIENT,
            done=appended,
            guards=guards,
        )

    return verified


def loaded_from(log: Log) -> dict[str, Metadata]:
    """The last record of each id in a log."""
    shard = TransactionShard(0, 0, lambda _: None)
    found = log.read(log.log_start_offset, 1 << 30, max_offset=log.log_end_offset)
    data = b"" if found.slice is None else found.slice.read()
    for position, header in iter_batches(data):
        for record in read_records(data, position, header=header):
            assert record.key is not None
            shard.replay(
                record.key,
                record.value,
                offset=record.offset,
                timestamp=record.timestamp,
                producer_id=-1,
                producer_epoch=-1,
            )
    return {name: known.metadata for name, known in shard.transactions.items()}


def transactional_batch(producer: tuple[int, int], value: bytes, sequence: int, now_ms: int) -> bytes:
    return bytes(
        build_batch(
            [Record(0, now_ms, None, value)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        )
    )


def values_of(fetched: Fetched) -> list[bytes]:
    """The values that a read_committed consumer gets of one partition, by the rules of consumers."""
    answer = fetched.only
    if answer.records is None:
        return []
    aborted_from = sorted(answer.aborted or [], key=lambda pair: pair[1])
    aborting: set[int] = set()
    values: list[bytes] = []
    data = answer.records.read()
    for position, header in iter_batches(data):
        while aborted_from and aborted_from[0][1] <= header.last_offset:
            aborting.add(aborted_from.pop(0)[0])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [record.value or b"" for record in read_records(data, position, header=header)]
    return values


__all__ = ["DATA", "TOPIC", "Answer", "PartitionKey", "TransactionStage"]
