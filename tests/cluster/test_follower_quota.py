"""The rate of throttled followers: which replicas count, and when they have to wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.scripted_leader import Follower
from tidelog.cluster.follower_quota import FollowerQuota
from tidelog.cluster.replication_quota import ReplicationQuota


@pytest.mark.parametrize(
    ("named", "expected"),
    [(("*",), True), (("0:0",), True), (("5:2", "0:0"), True), (("0:2", "1:0"), False), ((), False)],
)
def test_a_throttled_replica_waits_while_the_rate_is_exceeded(
    tmp_path: Path, named: tuple[str, ...], expected: bool
) -> None:
    follower = Follower(tmp_path)
    partition = follower.follow(follower_replication_throttled_replicas=named)
    measured = ReplicationQuota(follower.world.scheduler.clock)
    quota = FollowerQuota(measured)
    quota.record(partition, 5000)
    assert not quota.is_exceeded(partition), "there is no limit"
    measured.configure(100, 11, 1)
    quota.record(partition, 5000)
    assert quota.is_exceeded(partition) is expected
    follower.world.advance(11)
    assert not quota.is_exceeded(partition)
    follower.world.close()
