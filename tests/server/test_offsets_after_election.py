"""ListOffsets right after an election: no offset that goes back behind what clients have seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import Replicated
from tests.cluster.world import FOLLOWER, SELF
from tests.storage.helpers import NOW, batch
from tidelog.cluster.partition import Partition
from tidelog.errors import NotLeaderOrFollower, OffsetNotAvailable
from tidelog.metadata.state import PartitionState
from tidelog.protocol.offset_specs import EARLIEST, LATEST, MAX_TIMESTAMP
from tidelog.server.apis.offsets import CONSUMER, DEBUGGING_CONSUMER, NOT_FOUND, Found, find_offset
from tidelog.storage.reads import CACHED

OLD, NEW = NOW - 1000, NOW


def find(
    partition: Partition, timestamp: int, replica_id: int = CONSUMER, *, read_committed: bool = False
) -> Found:
    return find_offset(
        partition,
        timestamp,
        -1,
        replica_id=replica_id,
        read_committed=read_committed,
        version=9,
        reads=CACHED,
    )


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


@pytest.fixture
def elected(world: Replicated) -> Partition:
    """A leader whose log has three records, one of them committed as far as it knows."""
    partition = world.lead(isr=(SELF, FOLLOWER))
    world.produce(partition, batch(timestamp=OLD), acks=1)
    world.follow(1)
    world.produce(partition, batch(timestamp=NEW), acks=1)
    world.produce(partition, batch(timestamp=NEW), acks=1)
    world.lead(isr=(SELF, FOLLOWER), leader_epoch=1)
    assert partition.leader_log().high_watermark == 1
    return partition


@pytest.mark.parametrize("read_committed", [False, True])
@pytest.mark.parametrize("timestamp", [LATEST, NEW, MAX_TIMESTAMP])
def test_an_offset_behind_the_high_watermark_is_not_available(
    elected: Partition, timestamp: int, read_committed: bool
) -> None:
    with pytest.raises(OffsetNotAvailable):
        find(elected, timestamp, read_committed=read_committed)


def test_an_offset_below_the_high_watermark_is(elected: Partition) -> None:
    assert find(elected, OLD) == (OLD, 0, 0)
    assert find(elected, EARLIEST) == (-1, 0, 0)


@pytest.mark.parametrize("replica_id", [FOLLOWER, DEBUGGING_CONSUMER])
def test_brokers_and_tools_see_the_log_end(elected: Partition, replica_id: int) -> None:
    assert find(elected, LATEST, replica_id) == (-1, 3, 1)
    assert find(elected, NEW, replica_id) == (NEW, 1, 0)


def test_it_is_available_when_followers_have_the_beginning_of_the_epoch(
    world: Replicated, elected: Partition
) -> None:
    world.produce(elected, batch(timestamp=NEW + 1), acks=1)
    world.follow(2)
    with pytest.raises(OffsetNotAvailable):
        find(elected, LATEST)
    world.follow(3)
    assert find(elected, LATEST) == (-1, 3, 1)
    assert find(elected, NEW + 1) == NOT_FOUND


def test_a_follower_answers_tools_alone(world: Replicated, elected: Partition) -> None:
    state = PartitionState([SELF, FOLLOWER], FOLLOWER, 2, [SELF, FOLLOWER])
    elected.become_follower(elected.leader_log(), state)
    with pytest.raises(NotLeaderOrFollower):
        find(elected, LATEST)
    assert find(elected, LATEST, DEBUGGING_CONSUMER) == (-1, 3, 2)
