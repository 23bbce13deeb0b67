"""Several brokers in place of one, for suites that run on one broker and on a cluster.

TIDELOG_TEST_BROKERS=3 makes the fixtures of these suites start three brokers on a real ZooKeeper.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.faults.client import surprises
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.zookeeper import zookeeper_server

_CHROOTS = itertools.count()
# Partitions have one copy here: those of a broker that is down have no leader.
EXPECTED_ERRORS = ("no replica may lead (offline partition)",)


def broker_count() -> int:
    """How many brokers take the place of one."""
    return int(os.environ.get("TIDELOG_TEST_BROKERS") or 1)


def one_broker_only(reason: str) -> pytest.MarkDecorator:
    """Leaves a test out on several brokers; `reason` says why it holds for one broker only."""
    return pytest.mark.skipif(broker_count() > 1, reason=f"for one broker only: {reason}")


@functools.cache
def _zookeeper() -> str:
    """The ZooKeeper that all clusters of this process share. It ends with the process."""
    folder = tempfile.TemporaryDirectory(prefix="tidelog-zookeeper-")
    server = zookeeper_server(Path(folder.name))
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    server.wait_ready()
    return server.address


class OwnCluster(ClusterOfBrokers):
    """A cluster that a suite uses like one broker; clients know the address of one broker only.

    It is a broker that is not the controller, so that requests for the controller have to be passed on.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        chroot = f"{_zookeeper()}/{os.getpid()}-{next(_CHROOTS)}"
        super().__init__(folder, broker_count(), settings, zookeeper=chroot)
        self._known: Broker | None = None
        self._restarts = itertools.cycle(range(1, broker_count() + 1))
        self._paused: list[Broker] = []
        self._surprises: list[str] = []

    @property
    def known(self) -> Broker:
        """The broker whose address clients know."""
        if self._known is None:
            controller = self.controller
            self._known = next(self[id] for id in self.brokers if id != controller)
        return self._known

    @property
    def bootstrap(self) -> str:
        return self.known.bootstrap

    @property
    def address(self) -> tuple[str, int]:
        return self.known.address

    def kill(self) -> None:
        """Kill all brokers."""
        assert self.known
        for broker in self.running:
            broker.kill()

    def terminate(self) -> int:
        """Stop one broker after the other; the highest exit code."""
        assert self.known
        return max(broker.terminate() for broker in self.running)

    def restart(self, *, kill: bool = False) -> None:
        """Start all brokers again, after the end of those that run."""
        self._note_surprises()
        if kill:
            self.kill()
        elif self.running:
            self.terminate()
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.await_ready()
        self.await_members()

    def restart_next(self, *, kill: bool) -> None:
        """Restart one broker: each call takes another one, in turn."""
        self._note_surprises()
        self[next(self._restarts)].restart(kill=kill)

    def pause_next(self) -> None:
        """Pause one broker: each call takes another one, in turn."""
        broker = self[next(self._restarts)]
        self._paused.append(broker)
        os.kill(broker.pid, signal.SIGSTOP)

    def resume(self) -> None:
        while self._paused:
            os.kill(self._paused.pop().pid, signal.SIGCONT)

    def surprises(self) -> list[str]:
        """The errors that the brokers logged."""
        self._note_surprises()
        return self._surprises

    def _note_surprises(self) -> None:
        # Each start of a broker has a log of its own, so a line is met once for each look at it.
        for broker in self.brokers.values():
            found = surprises(broker.log(), EXPECTED_ERRORS)
            self._surprises += [line for line in found if line not in self._surprises]


class BrokersInTurn:
    """A cluster as a test of one broker sees it: `kill`, `start` and `restart` meet each broker in turn."""

    def __init__(self, cluster: ClusterOfBrokers) -> None:
        self._turns = itertools.cycle(cluster.brokers.values())
        self._killed: Broker | None = None
        # Each broker is down at times, so clients know all of them.
        self.bootstrap = ",".join(broker.bootstrap for broker in cluster.brokers.values())

    def kill(self) -> None:
        self._killed = next(self._turns)
        self._killed.kill()

    def start(self) -> None:
        assert self._killed is not None, "no broker was killed"
        self._killed.start()

    def restart(self) -> None:
        next(self._turns).restart()


AnyBroker = Broker | OwnCluster


def any_broker(
    folder: Path, settings: Mapping[str, str] | None = None
) -> AbstractContextManager[AnyBroker]:
    """One broker, or several where TIDELOG_TEST_BROKERS asks for them."""
    return Broker(folder, settings) if broker_count() == 1 else OwnCluster(folder, settings)
