"""A broker that is killed with commits under way comes back with every commit that it acknowledged."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

PARTITIONS = 4
COMMITTERS = 6


@dataclass
class Committer:
    """A simple consumer that commits one offset after the other, as fast as it is answered."""

    group_id: str
    bootstrap: str
    seed: int
    sent: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        chance = random.Random(self.seed)
        try:
            with RawConnection(self.bootstrap) as connection:
                while True:
                    self._commit(connection, chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)))
        except (ConnectionClosed, NoAnswer, OSError):
            return  # the broker was killed

    def _commit(self, connection: RawConnection, partitions: list[int]) -> None:
        for partition in partitions:
            self.sent[partition] = self.sent.get(partition, 0) + 1
        wanted = {partition: self.sent[partition] for partition in partitions}
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(
            name="orders",
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset
                )
                for index, offset in wanted.items()
            ],
        )
        answer = connection.ask(
            OffsetCommitRequest(group_id=self.group_id, topics=[topic]), OffsetCommitResponse, 9
        )
        for told in answer.topics[0].partitions:
            if told.error_code == 0:
                self.acknowledged[told.partition_index] = wanted[told.partition_index]


def prepare(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=PARTITIONS)])
    with RawConnection(broker.bootstrap) as connection:

        def has_coordinator() -> bool:
            return connection.ask(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 3).error_code == 0

        eventually(has_coordinator, "a coordinator")


def committed(broker: Broker, group_id: str) -> dict[int, int]:
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)

    def fetch() -> OffsetFetchResponse | None:
        with RawConnection(broker.bootstrap) as connection:
            answer = connection.ask(OffsetFetchRequest(groups=[wanted]), OffsetFetchResponse, 9)
        return None if answer.groups[0].error_code else answer

    return {
        partition.partition_index: partition.committed_offset
        for topic in eventually(fetch, f"the offsets of {group_id}").groups[0].topics
        for partition in topic.partitions
    }


def commit_until(committers: list[Committer], enough: int, kill: Callable[[], None]) -> None:
    """Everybody commits; once each of them has had some more acknowledged, the broker is killed."""
    begun = {each.group_id: sum(each.acknowledged.values()) for each in committers}

    def all_had_enough() -> bool:
        return all(sum(each.acknowledged.values()) >= begun[each.group_id] + enough for each in committers)

    threads = [threading.Thread(target=each.run) for each in committers]
    for thread in threads:
        thread.start()
    try:
        eventually(all_had_enough, "some commits of everybody", 60.0)
    finally:
        kill()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("seed", range(scale(2, 25)))
def test_every_acknowledged_commit_is_there_after_a_kill(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Broker(tmp_path / "broker", {"offsets.topic.num.partitions": "3"}) as broker:
        prepare(broker)
        committers = [
            Committer(f"group-{number}", broker.bootstrap, chance.randrange(10**9))
            for number in range(COMMITTERS)
        ]
        for _ in range(scale(2, 4)):
            commit_until(committers, chance.randint(5, 60), broker.kill)
            broker.start()
            for each in committers:
                found = committed(broker, each.group_id)
                for partition, offset in each.acknowledged.items():
                    assert offset <= found[partition] <= each.sent[partition]
                assert found.keys() <= each.sent.keys()
