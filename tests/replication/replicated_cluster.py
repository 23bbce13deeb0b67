"""Three brokers with three replicas of everything, whose links, disks and ZooKeeper fail on demand."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.faulty_cluster import BROKERS, FaultyCluster
from tests.replication.links import BrokerLinks, LinkState
from tests.support.loop_thread import LoopThread
from tests.support.ports import free_ports
from tests.support.wait import eventually, patience
from tidelog import Admin
from tidelog.errors import KafkaError

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "2000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT",
    "inter.broker.listener.name": "REPLICATION",
}
DISK_BYTES = 256 << 20


class ReplicatedCluster(FaultyCluster):
    """`with ReplicatedCluster(tmp_path) as cluster`. Broker N is in rack rN."""

    explained = (*FaultyCluster.explained, "No space left on device")

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, {**REPLICATED, **(settings or {})})
        self._ports = {broker_id: free_ports(2) for broker_id in BROKERS}
        self._link_loop = LoopThread()
        self._links = BrokerLinks({id: ports[1] for id, ports in self._ports.items()}, self._pids)
        self._advertised: dict[int, int] = {}
        self.has_small_disks = False
        """Whether the log folder of each broker is a small file system, which takes the rights of root."""

    def _start(self) -> None:
        self._stack.callback(self._link_loop.close)
        self._stack.callback(lambda: self._link_loop.run(self._links.close()))
        self._advertised = self._link_loop.run(self._links.open())
        self.has_small_disks = all(self._mount(broker_id) for broker_id in BROKERS)
        super()._start()

    def own_settings(self, broker_id: int) -> Mapping[str, str]:
        for_clients, for_brokers = self._ports[broker_id]
        return {
            "broker.rack": f"r{broker_id}",
            "listeners": f"PLAINTEXT://127.0.0.1:{for_clients},REPLICATION://127.0.0.1:{for_brokers}",
            "advertised.listeners": (
                f"PLAINTEXT://127.0.0.1:{for_clients},"
                f"REPLICATION://127.0.0.1:{self._advertised[broker_id]}"
            ),
        }

    def _pids(self) -> dict[int, int]:
        return {broker_id: self[broker_id].pid for broker_id in self.running}

    def _folder(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}" / "data"

    def _mount(self, broker_id: int) -> bool:
        folder = self._folder(broker_id)
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        return True

    # --- faults

    def separate(self, broker_id: int, state: LinkState, *, both_ways: bool = True) -> None:
        """Cut or hold the links between a broker and the others, or only those that it opens."""
        for other in BROKERS:
            if other != broker_id:
                self._set_link(broker_id, other, state)
                if both_ways:
                    self._set_link(other, broker_id, state)

    def _set_link(self, source: int, target: int, state: LinkState) -> None:
        self._link_loop.call(lambda: self._links.set(source, target, state))

    def heal(self) -> None:
        self._link_loop.call(self._links.heal)

    def fill_disk(self, broker_id: int) -> None:
        """Take all the room in the log folder of a broker."""
        with (self._folder(broker_id) / "ballast").open("wb", buffering=0) as ballast:
            chunk = bytes(1 << 20)
            try:
                while True:
                    ballast.write(chunk)
            except OSError:
                pass

    def free_disk(self, broker_id: int) -> None:
        (self._folder(broker_id) / "ballast").unlink(missing_ok=True)

    def pause_zookeeper(self) -> None:
        self.server.signal(signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        self.server.signal(signal.SIGCONT)

    # --- what must hold after a fault

    def await_recovery(self) -> None:
        """All brokers run, agree, and are in sync with every leader."""
        self.await_agreement()
        eventually(lambda: self.out_of_sync() == [], "every replica is in sync", patience(30.0), 0.1)

    def out_of_sync(self) -> list[str]:
        """The partitions whose ISR is not full, as the brokers say."""
        try:
            with Admin(bootstrap_servers=self.bootstrap, client_id="in-sync") as admin:
                topics = admin.describe_topics(admin.list_topics(list_internal=True))
        except (KafkaError, OSError) as error:
            return [f"no broker says: {error}"]
        return [
            f"{topic.name}-{partition.partition}: {partition.isr} of {partition.replicas}"
            for topic in topics.values()
            for partition in topic.partitions
            if set(partition.isr) != set(partition.replicas)
        ]
