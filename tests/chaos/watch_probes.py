"""Shows that every watch is set: changes the tree by hand and waits until somebody has acted on it.

Each change is seen through one watch. ZooKeeper lists watches of data (`wchc`), but not those of children.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.chaos.views import cluster_view
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse

BROKER = 4
SETTING = "message.max.bytes"
NOBODY = 99
"""A broker that does not exist: a failed log folder of it changes nothing."""

Address = tuple[str, int]
Wait = Callable[[Callable[[], bool], str], object]
"""Waits until a probe is true. Raises an AssertionError that names what did not happen in time."""


def data_watches(port: int) -> dict[int, set[str]]:
    """The paths whose data ZooKeeper watches, by session."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"wchc")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    found: dict[int, set[str]] = {}
    session = 0
    for line in map(str.strip, text.splitlines()):
        if match := re.fullmatch(r"0x([0-9a-f]+)", line):
            session = int(match[1], 16)
        elif line:
            found.setdefault(session, set()).add(line)
    return found


def missing_data_watches(
    found: Mapping[int, Collection[str]], controller: int, topics: Iterable[str], brokers: Collection[int]
) -> dict[int, list[str]]:
    """The watches that each of `brokers` should have and has not; `found` are its watches."""
    of_controller = {f"/brokers/topics/{name}" for name in topics}
    of_controller |= {f"/brokers/ids/{broker_id}" for broker_id in brokers}
    missing = {
        broker_id: {"/controller", *(of_controller if broker_id == controller else ())}.difference(
            found.get(broker_id, ())
        )
        for broker_id in brokers
    }
    return {broker_id: sorted(paths) for broker_id, paths in missing.items() if paths}


@dataclass(slots=True)
class WatchProbes:
    """`probe` raises an AssertionError that names the first watch that is lost."""

    kazoo: KazooClient
    wait: Wait
    round: int = 0

    def probe(self, addresses: Mapping[int, Address]) -> None:
        """`addresses` are those of the running brokers."""
        self.round += 1
        self._settings(addresses)
        self._topics(addresses)
        self._notifications()

    def _settings(self, addresses: Mapping[int, Address]) -> None:
        """/config/changes: all brokers apply a changed setting."""
        value = str(1_000_000 + self.round)
        path, data = "/config/brokers/<default>", json.dumps({"version": 1, "config": {SETTING: value}})
        if self.kazoo.exists(path):
            self.kazoo.set(path, data.encode())
        else:
            self.kazoo.create(path, data.encode())
        notice = json.dumps({"version": 2, "entity_path": "brokers/<default>"})
        self.kazoo.create("/config/changes/config_change_", notice.encode(), sequence=True)
        for broker_id, address in addresses.items():
            self._await(
                lambda broker_id=broker_id, address=address: _setting(address, broker_id) == value,
                f"the watch of /config/changes of broker {broker_id}",
            )

    def _topics(self, addresses: Mapping[int, Address]) -> None:
        """/brokers/topics and /admin/delete_topics: the controller creates and deletes a topic."""
        name, replica = f"probe-{self.round}", min(addresses)
        self.kazoo.create(f"/config/topics/{name}", b'{"version":1,"config":{}}')
        node = {"version": 2, "partitions": {"0": [replica]}, "adding_replicas": {}, "removing_replicas": {}}
        self.kazoo.create(f"/brokers/topics/{name}", json.dumps(node).encode())
        for broker_id, address in addresses.items():
            self._await(
                lambda address=address: name in _topics(address),
                f"the watch of /brokers/topics of the controller: broker {broker_id} knows a new topic",
            )
        self.kazoo.create(f"/admin/delete_topics/{name}")
        for broker_id, address in addresses.items():
            self._await(
                lambda address=address: name not in _topics(address),
                f"the watch of /admin/delete_topics of the controller: broker {broker_id} forgets a topic",
            )
        self._await(
            lambda: not self.kazoo.exists(f"/admin/delete_topics/{name}"), f"the deletion of {name} ends"
        )

    def _notifications(self) -> None:
        """The controller deletes what it has handled."""
        partitions = b'{"version":1,"partitions":[]}'
        lost_folder = json.dumps({"version": 1, "broker": NOBODY, "event": 1}).encode()
        for prefix, data, is_sequential in (
            ("/isr_change_notification/isr_change_", partitions, True),
            ("/log_dir_event_notification/log_dir_event_", lost_folder, True),
            ("/admin/preferred_replica_election", partitions, False),
        ):
            path = self.kazoo.create(prefix, data, sequence=is_sequential)
            self._await(
                lambda path=path: self.kazoo.exists(path) is None, f"the watch of {prefix} of the controller"
            )

    def _await(self, probe: Callable[[], bool], what: str) -> None:
        self.wait(probe, what)


def topics_in_tree(kazoo: KazooClient) -> list[str]:
    try:
        return list(kazoo.get_children("/brokers/topics"))
    except NoNodeError:
        return []


def _topics(address: Address) -> set[str]:
    view = cluster_view(address)
    return set() if view is None else {topic for topic, *_ in view.leaders}


def _setting(address: Address, broker_id: int) -> str | None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(broker_id), configuration_keys=[SETTING]
    )
    try:
        with RawConnection(address, timeout=5) as connection:
            answer = connection.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)
    except (ConnectionClosed, NoAnswer, OSError):
        return None
    return answer.results[0].configs[0].value if answer.results[0].configs else None
