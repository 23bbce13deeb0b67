"""ReplicationNemesis: faults of a replicated cluster in an order drawn from a seed, one at a time.

A fault may cost the majority that acks=all needs for a while. It must not cost an acknowledged record.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos.faulty_cluster import BROKERS
from tests.replication.links import LinkState
from tests.replication.replicated_cluster import ReplicatedCluster
from tests.support.wait import eventually, patience


class ReplicationNemesis:
    """`faults` counts what it did, `told` names it in order."""

    def __init__(self, cluster: ReplicatedCluster, seed: object, *, recovers: bool) -> None:
        """With `recovers`, it waits after each fault until all replicas are in sync again."""
        self.cluster = cluster
        self.chance = random.Random(str(seed))
        self.recovers = recovers
        self.faults: Counter[str] = Counter()
        self.told: list[str] = []
        self._deck: list[Callable[[int], None]] = []

    def act(self) -> None:
        """One fault, none again before each had its turn."""
        if not self._deck:
            self._deck = [
                self.kill,
                self.kill_controller,
                self.kill_until_gone,
                self.stop,
                self.pause,
                self.pause_until_gone,
                self.cut_links,
                self.hold_links,
                self.cut_links_of_requests,
                self.pause_zookeeper,
                self.expire_session,
                *([self.fill_disk] if self.cluster.has_small_disks else []),
            ]
            self.chance.shuffle(self._deck)
        fault = self._deck.pop()
        fault(self.chance.choice(BROKERS))
        if self.recovers:
            self.cluster.await_recovery()

    @contextmanager
    def _fault(self, name: str, broker_id: int = 0) -> Iterator[None]:
        self.faults[name] += 1
        self.told.append(f"{name} {broker_id}" if broker_id else name)
        try:
            yield
        except AssertionError as error:
            error.add_note(f"faults so far: {self.told}")
            raise

    def _for_a_while(self, least: float = 0.2, most: float = 3.0) -> None:
        ends = time.monotonic() + self.chance.uniform(least, most)
        eventually(lambda: time.monotonic() >= ends, "the fault lasts", most + 30)

    def _gone(self, broker_id: int) -> None:
        eventually(
            lambda: broker_id not in self.cluster.registered(),
            f"the session of broker {broker_id} expires",
            patience(20.0),
            0.02,
        )

    # --- processes

    def kill(self, broker_id: int) -> None:
        """The broker comes back at once."""
        with self._fault("kill", broker_id):
            self.cluster.kill(broker_id)
            self.cluster.start(broker_id)

    def kill_controller(self, _: int) -> None:
        self.kill(self.cluster.await_controller())

    def kill_until_gone(self, broker_id: int) -> None:
        """The others go on without it."""
        with self._fault("kill until gone", broker_id):
            self.cluster.kill(broker_id)
            self._gone(broker_id)
            self._for_a_while()
            self.cluster.start(broker_id)

    def stop(self, broker_id: int) -> None:
        with self._fault("stop", broker_id):
            self.cluster.stop(broker_id)
            self._for_a_while()
            self.cluster.start(broker_id)

    def pause(self, broker_id: int) -> None:
        """Shorter than its session."""
        with self._fault("pause", broker_id):
            self.cluster.pause(broker_id)
            try:
                self._for_a_while(0.1, 1.5)
            finally:
                self.cluster.resume(broker_id)

    def pause_until_gone(self, broker_id: int) -> None:
        """The others elect leaders meanwhile, and the broker does not know it when it goes on."""
        with self._fault("pause until gone", broker_id):
            self.cluster.pause(broker_id)
            try:
                self._gone(broker_id)
                self._for_a_while(0.0, 1.0)
            finally:
                self.cluster.resume(broker_id)

    # --- links

    def cut_links(self, broker_id: int) -> None:
        self._separate("cut links", broker_id, LinkState.CUT)

    def hold_links(self, broker_id: int) -> None:
        """What was on the way arrives late."""
        self._separate("hold links", broker_id, LinkState.HELD)

    def cut_links_of_requests(self, broker_id: int) -> None:
        """The broker reaches no other one, but they reach it."""
        self._separate("cut links of its requests", broker_id, LinkState.CUT, both_ways=False)

    def _separate(self, name: str, broker_id: int, state: LinkState, *, both_ways: bool = True) -> None:
        with self._fault(name, broker_id):
            self.cluster.separate(broker_id, state, both_ways=both_ways)
            try:
                self._for_a_while(0.5, 5.0)
            finally:
                self.cluster.heal()

    # --- ZooKeeper and disks

    def pause_zookeeper(self, _: int) -> None:
        """For less than a session. Leaders go on with the replicas that they have."""
        with self._fault("pause ZooKeeper"):
            self.cluster.pause_zookeeper()
            try:
                self._for_a_while(0.2, 2.0)
            finally:
                self.cluster.resume_zookeeper()

    def expire_session(self, broker_id: int) -> None:
        with self._fault("expire session", broker_id):
            self.cluster.expire(broker_id)

    def fill_disk(self, broker_id: int) -> None:
        with self._fault("fill disk", broker_id):
            self.cluster.fill_disk(broker_id)
            try:
                self._for_a_while(0.5, 3.0)
            finally:
                self.cluster.free_disk(broker_id)
