"""Three brokers in the place of one, for the stories of groups and transactions."""

from __future__ import annotations

import random

from tests.chaos.faulty_cluster import BROKERS, FaultyCluster
from tests.chaos.nemesis import Nemesis


class MovingBrokers:
    """Implements `Running` of tests.groups and of tests.exactly_once: a fault hits a broker by seed.

    So the coordinators and leaders that a story uses come and go one after the other.
    """

    has_two_phase = True

    def __init__(self, cluster: FaultyCluster, seed: object) -> None:
        self._cluster = cluster
        self._nemesis = Nemesis(cluster, seed)
        self._chance = random.Random(str(seed))
        self._paused = BROKERS[0]

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self) -> None:
        self._nemesis.kill(self._some())

    def restart(self, *, kill: bool) -> None:
        """Another broker loses its ZooKeeper session or connection meanwhile."""
        other = self._some()
        if self._chance.random() < 0.5:
            self._nemesis.expire(other)
        else:
            self._nemesis.cut(other)
        if kill:
            self._nemesis.kill(self._some(), wait=self._chance.random() < 0.3)
        else:
            self._nemesis.stop(self._some())

    def pause(self) -> None:
        self._paused = self._some()
        self._cluster.pause(self._paused)

    def resume(self) -> None:
        self._cluster.resume(self._paused)

    def surprises(self) -> list[str]:
        return self._cluster.surprises()

    def _some(self) -> int:
        return self._chance.choice(BROKERS)
