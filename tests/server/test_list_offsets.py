"""Lookups by time cost what they must, and leave the loop to others in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.clock import SystemClock
from tidelog.network.request import Request
from tidelog.protocol.message import Message
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.offset_specs import LATEST
from tidelog.records.batch import Record, build_batch, read_header, read_records, record_times
from tidelog.records.codecs import Codec
from tidelog.server.apis.api import Answer
from tidelog.server.apis.offsets import list_offsets
from tidelog.server.services import Services
from tidelog.slices import Slices, finished
from tidelog.storage.reads import CachedReads

PARTITIONS = 200
MS = 0.001


class SlowLog:
    """Finds an offset by time in a millisecond of CPU."""

    last_stable_offset = high_watermark = 100
    last_turn = 0.0
    longest = 0.0
    lookups = 0

    def offset_for_timestamp(self, timestamp: int, reads: CachedReads) -> tuple[int, int, int]:
        until = time.thread_time() + MS
        while time.thread_time() < until:
            pass
        self.lookups += 1
        self.longest = max(self.longest, time.thread_time() - self.last_turn)
        return timestamp, 7, 0

    async def others(self) -> None:
        while self.lookups < PARTITIONS:
            self.last_turn = time.thread_time()
            await asyncio.sleep(0)


def ask(log: SlowLog, timestamp: int) -> Answer:
    partition = SimpleNamespace(
        local_log=lambda _, only_leader: log, leader_epoch=0, has_uncertain_offsets=False
    )
    replicas = SimpleNamespace(partition=lambda *_: partition, scheduler=SimpleNamespace(clock=SystemClock()))
    services = SimpleNamespace(authorizer=None, replicas=replicas)
    wanted = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(PARTITIONS)
    ]
    topic = ListOffsetsRequest.ListOffsetsTopic(name="topic", partitions=wanted)
    request = cast("Request", SimpleNamespace(api_version=8))
    body = ListOffsetsRequest(replica_id=-1, topics=[topic])
    return list_offsets(cast("Services", services), request, body)


def test_many_partitions_are_looked_up_between_the_turns_of_others() -> None:
    log = SlowLog()

    async def run() -> Message:
        others = asyncio.create_task(log.others())
        await asyncio.sleep(0)
        answer = await cast("Coroutine[None, None, Message]", ask(log, 1234))
        await others
        return answer

    answer = asyncio.run(run())
    assert isinstance(answer, ListOffsetsResponse)
    assert [partition.offset for partition in answer.topics[0].partitions] == [7] * PARTITIONS
    assert log.longest < PARTITIONS * MS / 2


def test_the_end_of_a_log_needs_no_lookup() -> None:
    answer = asyncio.run(finished(cast("Slices[ListOffsetsResponse]", ask(SlowLog(), LATEST))))
    assert [partition.offset for partition in answer.topics[0].partitions] == [100] * PARTITIONS


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("append_time", [None, 99])
@pytest.mark.parametrize("first", [0, -5, 2**63 - 3, -(2**63)])
def test_times_of_records_are_those_that_readers_see(
    codec: Codec, append_time: int | None, first: int
) -> None:
    times = [first, first + 2, first - 1 if first > -(2**63) else 5]
    records = [Record(10 + 3 * at, moment, b"key", None) for at, moment in enumerate(times)]
    batch = build_batch(records, codec=codec, base_offset=10, log_append_time=append_time)
    expected = [(record.offset, record.timestamp) for record in read_records(batch)]
    assert list(record_times(batch, 0, read_header(batch))) == expected
