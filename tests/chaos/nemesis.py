"""Nemesis: the faults of one cluster, in an order drawn from a seed."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.faulty_cluster import FaultyCluster
from tests.support.wait import eventually, patience


class Nemesis:
    """Each fault leaves all brokers running. `faults` counts them, `told` names them in order."""

    def __init__(self, cluster: FaultyCluster, seed: object) -> None:
        self.cluster = cluster
        self.chance = random.Random(str(seed))
        self.faults: Counter[str] = Counter()
        self.told: list[str] = []

    def _tell(self, fault: str, broker_id: int) -> None:
        self.faults[fault] += 1
        self.told.append(f"{fault} {broker_id}")

    def gone(self, broker_id: int) -> None:
        """Wait until the session of a dead or paused broker has expired."""
        eventually(
            lambda: broker_id not in self.cluster.registered(),
            f"the session of broker {broker_id} expires",
            patience(20.0),
            0.02,
        )

    # --- faults of one broker

    def kill(self, broker_id: int, *, wait: bool = False) -> None:
        """With `wait` it comes back after its session has expired, else at once."""
        self._tell("kill", broker_id)
        self.cluster.kill(broker_id)
        if wait:
            self.gone(broker_id)
        self.cluster.start(broker_id)

    def stop(self, broker_id: int) -> None:
        self._tell("stop", broker_id)
        self.cluster.stop(broker_id)
        self.cluster.start(broker_id)

    def pause(self, broker_id: int, *, wait: bool = False) -> None:
        """With `wait` until the session has expired, else until another broker was asked something."""
        self._tell("pause", broker_id)
        self.cluster.pause(broker_id)
        try:
            if wait:
                self.gone(broker_id)
            else:
                self.cluster.registered()
        finally:
            self.cluster.resume(broker_id)

    def cut(self, broker_id: int) -> None:
        self._tell("cut", broker_id)
        self.cluster.cut(broker_id)

    def expire(self, broker_id: int) -> None:
        self._tell("expire", broker_id)
        self.cluster.expire(broker_id)

    def isolate(self, broker_id: int) -> None:
        """ZooKeeper gets nothing from the broker, and answers nothing, until the session has expired."""
        self._tell("isolate", broker_id)
        self.cluster.hold(broker_id)
        try:
            self.gone(broker_id)
        finally:
            self.cluster.release(broker_id)
