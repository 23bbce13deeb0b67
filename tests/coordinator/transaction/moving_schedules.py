"""The schedules of transactions on two brokers: coordinators and leaders move, records that are not committed
are lost, metadata comes late, and the brokers' requests to each other get lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.coordinator.transaction.schedules import PARTITIONS, Schedule
from tests.coordinator.transaction.stage import DATA
from tests.coordinator.transaction.two_broker_stage import LOG, TwoBrokerStage
from tidelog.coordinator.transaction.records import decode_value
from tidelog.coordinator.transaction.state import PREPARED, Metadata, State
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.records.batch import BatchHeader, Record, iter_batches, read_control_record, read_records


class MovingSchedule(Schedule):
    stage: TwoBrokerStage

    def __init__(self, folder: Path, seed: int, *, ids: int = 4, seconds: float = 25.0) -> None:
        # What DescribeTransactions has told of each id.
        self.told: dict[str, Metadata] = {}
        super().__init__(folder, seed, ids=ids, seconds=seconds)
        self._observe_on_time()

    def make_stage(self, folder: Path, seed: int) -> TwoBrokerStage:
        stage = TwoBrokerStage(folder, seed, partitions=PARTITIONS, settings={"request.timeout.ms": 500})
        stage.world.faults = 0.05
        stage.world.metadata_delay = 0.3
        return stage

    def _observe_on_time(self) -> None:
        if not self.is_over:
            self.observe()
            self.stage.world.scheduler.schedule(0.1, self._observe_on_time)

    def observe(self) -> None:
        """What was told of an id is committed: it never goes back."""
        for number in range(4):
            name = f"id-{number}"
            try:
                told = self.stage.coordinator.describe(name)
            except KafkaError:
                continue
            before = self.told.get(name)
            if before is not None:
                assert told.last_update_ms >= before.last_update_ms, f"{name} went back to {told}"
                assert told.producer_id != before.producer_id or (
                    told.producer_epoch >= before.producer_epoch
                ), f"the epoch of {name} went back"
            self.told[name] = told

    def check_replay(self) -> None:
        try:
            super().check_replay()
        except KafkaError:
            pass  # it is being loaded

    def become_quiet(self) -> None:
        self.stage.world.faults = 0.0
        self.stage.world.advance(20.0)

    def check(self) -> None:
        super().check()
        self.check_markers()
        assert all(answer.is_there for answer in self.stage.answers), "a request was never answered"

    def check_markers(self) -> None:
        """Every marker carries out a decision that is in the log of the coordinators."""
        decisions = {
            (prepared.producer_id, prepared.producer_epoch, prepared.state is State.PREPARE_COMMIT)
            for _, record in self._records(LOG)
            if record.value is not None and (prepared := decode_value(record.value)).state in PREPARED
        }
        for index in range(PARTITIONS):
            for header, record in self._records((DATA, index)):
                marker = read_control_record(record) if header.is_control else None
                if marker is not None:
                    written = (header.producer_id, header.producer_epoch, marker.commit)
                    assert written in decisions, f"nobody decided on the marker {written} in {DATA}-{index}"

    def _records(self, key: PartitionKey) -> Iterator[tuple[BatchHeader, Record]]:
        log = self.stage.world.leader(key).log(key)
        found = log.read(0, 1 << 30, max_offset=log.log_end_offset)
        data = b"" if found.slice is None else found.slice.read()
        for position, header in iter_batches(data):
            for record in read_records(data, position, header=header):
                yield header, record
