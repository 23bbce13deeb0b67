"""A whole broker in this process: its loop in a thread of its own, its data in a temporary folder.

It serves what `tidelog start` serves. Its defaults are made for tests: internal topics have one partition,
a group does not wait for more members before its first rebalance, and a console answers on a machine that is
full of tests. Every setting can be changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tidelog.testing.lines import LogLines, thread_name

if TYPE_CHECKING:
    from tidelog import ConsumerRecord, RecordMetadata
    from tidelog.server.broker import Broker as ServerBroker

log = logging.getLogger("tidelog.server")

START_SECONDS = 60.0
STOP_SECONDS = 60.0

SETTINGS_FOR_TESTS = {
    "console.scheduling.policy": "normal",
    "group.initial.rebalance.delay.ms": "0",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Broker:
    """`with Broker() as broker:` runs one; any Kafka client connects to `broker.bootstrap_servers`.

    Settings are those of server.properties, as keywords with underscores or as a dict:
    `Broker(auto_create_topics_enable=False)`. Data goes to a temporary folder, which `close` removes, unless
    log.dirs or log.dir is set.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        # A name with dots is one of Kafka's. Names of listeners in it may have underscores: sasl_ssl.
        given = {
            name if "." in name else name.replace("_", "."): value
            for name, value in {**(config or {}), **settings}.items()
        }
        self.settings = SETTINGS_FOR_TESTS | {name: _text(value) for name, value in given.items()}
        self._folder = ""
        self._process = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._address = ""
        self._listeners = "PLAINTEXT://127.0.0.1:0"
        self._log: LogLines | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What clients need

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener. A restart keeps it."""
        if not self._address:
            raise RuntimeError("the broker was not started: use it as `with Broker() as broker:`")
        return self._address

    @property
    def host(self) -> str:
        return self.bootstrap_servers.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    def address_of(self, listener: str) -> str:
        """HOST:PORT of a listener by its name."""
        found = dict(bound.split("://", 1) for bound in self._listeners.split(","))
        return found[listener]

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic, and return when it can be used."""
        from tidelog import Admin, NewTopic

        settings = {key.replace("_", "."): _text(value) for key, value in (configs or {}).items()}
        with Admin(bootstrap_servers=self.bootstrap_servers, client_id="tidelog-testing") as admin:
            admin.create_topics([NewTopic(name, partitions, 1, configs=settings)])

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[RecordMetadata]:
        """Write a record for each value, and return when all are written. Text is written as UTF-8."""
        from tidelog.testing import contents

        return contents.produce(self.bootstrap_servers, topic, values, key, headers, partition, timestamp_ms)

    def records(
        self,
        topic: str,
        partition: int | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] = "read_uncommitted",
    ) -> list[ConsumerRecord]:
        """Every record of a topic, or of one of its partitions, in the order of partitions and offsets."""
        from tidelog.testing import contents

        return contents.records(self.bootstrap_servers, topic, partition, isolation_level)

    # What a test can look at

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def data(self) -> str:
        """The log folder; the first one if log.dirs names several."""
        if given := self._given_folders:
            return given.split(",")[0]
        if not self._folder:
            raise RuntimeError("the broker was not started, or is closed: it has no folder")
        return self._folder

    @property
    def _given_folders(self) -> str:
        return self.settings.get("log.dirs") or self.settings.get("log.dir", "")

    def log_lines(self, since: int = 0) -> list[str]:
        """The last 10,000 lines that the broker logged, without the first `since` lines of all."""
        return [] if self._log is None else self._log.lines(since)

    @property
    def log_count(self) -> int:
        """The number of lines logged so far; `log_lines(log_count)` returns the lines after it."""
        return 0 if self._log is None else self._log.count

    # Start and stop

    def start(self) -> None:
        """Start, and return when the broker answers requests. After `stop` it keeps data and port."""
        self._check_process()
        if self.running:
            raise RuntimeError(f"the broker is running already, on {self._address}")
        self._process = os.getpid()
        if not self._folder and not self._given_folders:
            self._folder = tempfile.mkdtemp(prefix="tidelog-")
            self._forgotten = weakref.finalize(self, _forgotten, self._folder, self._process)
        name = thread_name(self.port if self._address else 0)
        if self._log is None:
            self._log = LogLines()
        self._log.attach(name)
        self._failure = None
        self._stopping = False
        ready = threading.Event()
        # A forgotten close must not keep the program running.
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        try:
            self._thread.start()
            if not ready.wait(START_SECONDS):
                self._failure = TimeoutError(f"the broker did not start within {START_SECONDS:.0f} s")
        except BaseException:  # Ctrl-C, or the time limit of a test: the caller has no broker to close
            self.close()
            raise
        if self._failure is not None:
            failure = self._failure
            self.close()
            raise failure

    def stop(self) -> None:
        """Shut down cleanly; the data stays for `start`."""
        self._check_process()
        self._stopping = True
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if loop is not None and stop is not None and thread.is_alive():
            with suppress(RuntimeError):  # the broker ended by itself, and its loop is closed
                loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"the broker on {self._address} did not stop within {STOP_SECONDS:.0f} s")
        self._thread = self._loop = self._stop = None
        if self._log is not None:
            self._log.detach()

    def restart(self) -> None:
        """Stop, and start again with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder. Does nothing when called again, or in a forked process."""
        if self._is_forked:
            return
        try:
            self.stop()
        finally:
            if self._folder:
                self._forgotten.detach()
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = ""

    @property
    def _is_forked(self) -> bool:
        return self._process not in (0, os.getpid())

    def _check_process(self) -> None:
        if self._is_forked:
            raise RuntimeError(
                f"the broker on {self._address} belongs to process {self._process}, from which this one was "
                "forked: stop and start it there"
            )

    # In the broker's thread

    def _run(self, ready: threading.Event) -> None:
        try:
            self._serve(ready)
        except BaseException as error:
            self._failure = error
        finally:
            ready.set()

    def _serve(self, ready: threading.Event) -> None:
        from tidelog.network.loop import BrokerLoop
        from tidelog.server.broker import Broker as ServerBroker
        from tidelog.server.config.broker import BrokerConfig

        given = {"listeners": self._listeners, "log.dir": self.data, **self.settings}
        if self._address:
            given["listeners"] = self._listeners
        config = BrokerConfig(given)
        loop = BrokerLoop(config.num_io_threads)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(ServerBroker(config, loop), ready))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            loop.close()

    async def _live(self, broker: ServerBroker, ready: threading.Event) -> None:
        stop = asyncio.Event()
        self._loop, self._stop = asyncio.get_running_loop(), stop
        if self._stopping:
            stop.set()  # `stop` was called before there was a loop
        for line in broker.config.warnings:
            log.warning("%s", line)
        try:
            await broker.start()
            self._address, self._listeners = broker.address, _bound(broker)
            ready.set()
            failed = asyncio.ensure_future(broker.failed.wait())
            stopped = asyncio.ensure_future(stop.wait())
            _, waiting = await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        finally:
            await broker.stop()


def _bound(broker: ServerBroker) -> str:
    """The listeners with the ports that the system chose, for a restart."""
    return ",".join(
        str(replace(endpoint, port=int(broker.addresses[endpoint.listener].rpartition(":")[2])))
        for endpoint in broker.config.endpoints
    )


def _forgotten(folder: str, process: int) -> None:
    """Remove the folder of a broker that was not closed, unless this is a forked process."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(
            f"a broker was not closed; its folder {folder} is removed", ResourceWarning, stacklevel=2
        )


def _text(value: object) -> str:
    """A setting in the form of server.properties."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
