"""Many topics at once leave the loop to others in between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.controller.hosts import ADDRESS, BROKER, FewRules, RecordingHost
from tidelog.clock import SystemClock
from tidelog.controller.interface import NewTopic
from tidelog.controller.single import SingleController
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.state import PartitionState
from tidelog.metadata.store import MetadataStore

TOPICS = 200
MS = 0.001


class SlowHost(RecordingHost):
    """Making a log takes a moment, as on a disk; knows the longest time that nobody else had a turn."""

    last_turn = 0.0
    longest = 0.0

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        super().become_leader(topic, topic_id, partition, state)
        until = time.thread_time() + MS
        while time.thread_time() < until:
            pass
        self.longest = max(self.longest, time.thread_time() - self.last_turn)

    async def others(self) -> None:
        while len(self.leads) < TOPICS:
            self.last_turn = time.thread_time()
            await asyncio.sleep(0)


async def make_many(folder: Path) -> float:
    host = SlowHost()
    with EmbeddedTree(folder / FILE_NAME, SystemClock()) as tree:
        controller = SingleController(MetadataStore(tree, SystemClock()), BROKER, FewRules())
        await controller.load()
        await controller.register(ADDRESS)
        await controller.activate(host)
        others = asyncio.create_task(host.others())
        await controller.create_topics([NewTopic(f"topic-{number}", 1, 1) for number in range(TOPICS)])
        await others
        await controller.close()
    return host.longest


def test_topics_of_one_partition_are_made_between_the_turns_of_others(tmp_path: Path) -> None:
    assert asyncio.run(make_many(tmp_path)) < TOPICS * MS / 2
