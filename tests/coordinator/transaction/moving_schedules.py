"""The schedules of transactions on two brokers: coordinators and leaders move, records that are not committed
are lost, metadata comes late, and the brokers' requests to each other get lost."""

from __future__ import annotations

from pathlib import Path

from tests.coordinator.transaction.schedules import PARTITIONS, Schedule
from tests.coordinator.transaction.two_broker_stage import TwoBrokerStage
from tidelog.coordinator.transaction.state import Metadata
from tidelog.errors import KafkaError


class MovingSchedule(Schedule):
    stage: TwoBrokerStage

    def __init__(self, folder: Path, seed: int, *, ids: int = 4, seconds: float = 25.0) -> None:
        # What DescribeTransactions has told of each id.
        self.told: dict[str, Metadata] = {}
        super().__init__(folder, seed, ids=ids, seconds=seconds)
        self._observe_on_time()

    def make_stage(self, folder: Path, seed: int) -> TwoBrokerStage:
        stage = TwoBrokerStage(folder, seed, partitions=PARTITIONS, settings={"request.timeout.ms": 2_000})
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
        assert all(answer.is_there for answer in self.stage.answers), "a request was never answered"
