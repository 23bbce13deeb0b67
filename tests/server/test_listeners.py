"""Listeners: several under names of their own, each telling its clients the address that they can use."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

MAP = {"listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"}


def told(address: tuple[str, int]) -> tuple[str, int]:
    """Where Metadata and DescribeCluster say that the broker is, asked at this address."""
    with RawConnection(address) as connection:
        (broker,) = connection.ask(MetadataRequest(topics=[]), MetadataResponse, 12).brokers
        (same,) = connection.ask(DescribeClusterRequest(), DescribeClusterResponse, 1).brokers
        assert (same.host, same.port) == (broker.host, broker.port)
        return broker.host, broker.port


def bound(broker: Broker) -> dict[str, tuple[str, int]]:
    """The listeners as the line that tells of the start names them."""
    started = next(line for line in broker.log().splitlines() if "msg=started" in line)
    found = re.findall(r"([A-Z]+)://([\d.]+):(\d+)", started)
    return {name: (host, int(port)) for name, host, port in found}


def test_a_client_is_told_the_address_of_the_listener_it_came_by(tmp_path: Path) -> None:
    settings = {
        **MAP,
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "INSIDE://inside.test:19092,OUTSIDE://outside.test:443",
        "inter.broker.listener.name": "INSIDE",
    }
    with Broker(tmp_path, settings) as broker:
        addresses = bound(broker)
        assert addresses["INSIDE"] == broker.address, "the first listener is the one that is announced"
        assert told(addresses["INSIDE"]) == ("inside.test", 19092)
        assert told(addresses["OUTSIDE"]) == ("outside.test", 443)


def test_ports_that_the_system_chose_are_advertised(tmp_path: Path) -> None:
    settings = {
        **MAP,
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "inter.broker.listener.name": "INSIDE",
    }
    with Broker(tmp_path, settings) as broker:
        addresses = bound(broker)
        assert len({port for _, port in addresses.values()}) == 2
        for address in addresses.values():
            assert told(address) == address
        # The broker is ready a moment before it prints.
        screen = eventually(lambda: broker.log() if "Ctrl-C" in broker.log() else None, "the first screen")
        for host, port in addresses.values():
            assert f" {host}:{port} " in screen, "a person finds every listener on the first screen"


def test_ports_that_were_given_are_used_and_kept_over_a_restart(tmp_path: Path) -> None:
    inside, outside = free_ports(2)
    settings = {
        **MAP,
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "advertised.listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside}",
        "inter.broker.listener.name": "INSIDE",
    }
    with Broker(tmp_path, settings) as broker:
        for _ in range(2):
            assert told(("127.0.0.1", inside)) == ("127.0.0.1", inside)
            assert told(("127.0.0.1", outside)) == ("localhost", outside)
            broker.restart()


def test_a_listener_bound_everywhere_advertises_the_address_that_was_given(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {
        "listeners": f"PLAINTEXT://0.0.0.0:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    with Broker(tmp_path, settings):
        assert told(("127.0.0.1", port)) == ("127.0.0.1", port)


def test_without_settings_only_the_loopback_address_is_bound(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        addresses = {
            address
            for address in socket.gethostbyname_ex(socket.gethostname())[2]
            if not address.startswith("127.")
        }
        for address in addresses:
            with pytest.raises(OSError), socket.create_connection((address, broker.port), 1):
                pass
        assert broker.host == "127.0.0.1"


def test_the_listeners_of_controllers_are_left_out_with_a_line(tmp_path: Path) -> None:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    with Broker(tmp_path, settings) as broker:
        assert list(bound(broker)) == ["PLAINTEXT"]
        assert "CONTROLLER" in broker.log()
