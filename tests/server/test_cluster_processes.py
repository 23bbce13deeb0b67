"""LocalCluster stops its processes in an order in which none waits for one that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tidelog.server.cluster_processes import BrokerProcess, LocalCluster, LocalClusterOptions
from tidelog.server.zookeeper_process import ZooKeeperProcess


class FakeProcess:
    """Tells what it is asked, in order with all others."""

    def __init__(self, name: str, told: list[str], *, running: bool = True) -> None:
        self._name = name
        self._told = told
        self.running = running

    def ask_to_stop(self) -> None:
        self._told.append(f"ask {self._name}")

    def stop(self) -> None:
        self._told.append(f"stop {self._name}")


@pytest.mark.parametrize("has_zookeeper", [True, False])
def test_brokers_stop_one_by_one_with_zookeeper_and_together_without(
    tmp_path: Path, has_zookeeper: bool
) -> None:
    told: list[str] = []
    local = LocalCluster(LocalClusterOptions(3, tmp_path, port=0))
    local.brokers = [cast(BrokerProcess, FakeProcess(f"broker {number}", told)) for number in (1, 2, 3)]
    local.zookeeper = cast(ZooKeeperProcess, FakeProcess("ZooKeeper", told, running=has_zookeeper))
    local.stop()
    asked = [] if has_zookeeper else ["ask broker 1", "ask broker 2", "ask broker 3"]
    assert told == [*asked, "stop broker 3", "stop broker 2", "stop broker 1", "stop ZooKeeper"]


def test_a_broker_of_a_local_cluster_asks_once_to_be_relieved(tmp_path: Path) -> None:
    """Two brokers that waited for a leader that had stopped before took ten seconds each."""
    name = "controlled.shutdown.max.retries"
    broker = BrokerProcess(1, LocalClusterOptions(3, tmp_path, port=0), "localhost:1")
    assert broker._settings[name] == "1"
    given = LocalClusterOptions(3, tmp_path, port=0, settings={name: "3"})
    assert BrokerProcess(1, given, "localhost:1")._settings[name] == "3"
