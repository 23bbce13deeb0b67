"""A broker that is killed amid rebalances comes back with every offset that it said was committed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.brokers import Running, running_broker
from tests.groups.outside import Group, find_coordinator
from tests.groups.raw_members import ClassicMember, ConsumerMember, RawMember, Register, wait_for_rounds
from tests.support.routing import routed_connection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog import Admin, NewTopic

pytestmark = pytest.mark.skipif(
    "TIDELOG_TEST_BROKER" in os.environ, reason="Kafka takes seconds to come back from each kill"
)
PARTITIONS = 6


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Running]:
    with running_broker(tmp_path) as running:
        yield running


@pytest.mark.parametrize("kind", [ClassicMember, ConsumerMember])
def test_committed_offsets_survive_kills_amid_rebalances(broker: Running, kind: type[RawMember]) -> None:
    chance = random.Random(kind.__name__)
    group = Group(broker.bootstrap, "g")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("t", PARTITIONS)])
    with routed_connection(broker.bootstrap) as connection:
        find_coordinator(connection, group.name)
    register = Register()
    members = [kind(broker.bootstrap, group.name, "t", PARTITIONS, register) for _ in range(4)]
    for _ in range(scale(6, 60)):
        for member in members:
            member.start(chance.getrandbits(32))
        # Members come and go all the time: some requests after any round the group is in some rebalance.
        wait_for_rounds(register, members, chance.randrange(1, 30))
        broker.kill()
        for member in members:
            member.join()
        broker.restart(kill=False)
        found = eventually(group.committed, "the committed offsets", 20)
        for partition in range(PARTITIONS):
            offset = found.get(("t", partition), 0)
            assert register.explains(partition, offset), (
                f"partition {partition}: {offset} is committed; acknowledged was "
                f"{register.acknowledged[partition]}, unsure are {sorted(register.unsure[partition])[-5:]}"
            )
            register.acknowledged[partition] = offset
            register.unsure[partition].clear()
        assert broker.surprises() == []
    assert all(register.acknowledged[partition] for partition in range(PARTITIONS))
