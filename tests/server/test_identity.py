"""Who a broker is: the id it was given, the one its folder remembers or a new one; and its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.client import Client
from tests.support.broker import Broker
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


def meta_properties(broker: Broker) -> dict[str, str]:
    lines = (broker.data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def identity(broker: Broker) -> tuple[int, str]:
    with Client(broker.address) as client:
        answer = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 1)
        assert [each.broker_id for each in answer.brokers] == [answer.controller_id]
        return answer.controller_id, answer.cluster_id


@pytest.mark.parametrize("setting", ["broker.id", "node.id"])
def test_an_id_that_was_given_is_taken(tmp_path: Path, setting: str) -> None:
    with Broker(tmp_path, {setting: "7"}) as broker:
        broker_id, cluster_id = identity(broker)
        assert broker_id == 7
        meta = meta_properties(broker)
        assert (meta["broker.id"], meta["cluster.id"]) == ("7", cluster_id)


def test_an_id_that_was_not_given_is_made_above_the_reserved_ones_and_kept(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        first = identity(broker)
        assert first[0] == 1001
        assert meta_properties(broker)["broker.id"] == "1001"
        broker.restart()
        assert identity(broker) == first
        broker.restart(kill=True)
        assert identity(broker) == first


def test_the_reserved_ids_are_a_setting(tmp_path: Path) -> None:
    with Broker(tmp_path, {"reserved.broker.max.id": "50"}) as broker:
        assert identity(broker)[0] == 51


def test_an_id_that_may_not_be_made_is_asked_for(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"broker.id.generation.enable": "false"})
    broker.launch()
    assert broker.wait() == 1
    assert "broker.id" in broker.log()
    assert "Traceback" not in broker.log()


def test_an_id_other_than_the_folders_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path, {"broker.id": "3"}) as broker:
        broker.terminate()
        broker.settings["broker.id"] = "4"
        broker.launch()
        assert broker.wait() == 1
        assert "3" in broker.log()
        assert "Traceback" not in broker.log()
        broker.settings["broker.id"] = "3"
        broker.start()


def test_a_new_folder_joins_the_cluster_of_the_first(tmp_path: Path) -> None:
    with Broker(tmp_path, {"broker.id": "3"}) as broker:
        found = identity(broker)
        broker.terminate()
        second = tmp_path / "more"
        broker.settings["log.dirs"] = f"{broker.data},{second}"
        broker.start()
        assert identity(broker) == found
        assert f"cluster.id={found[1]}" in (second / "meta.properties").read_text()
