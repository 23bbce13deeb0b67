"""A whole broker in this process: its loop in a thread of its own, its data in a folder that goes with it.

What it serves and how is that of `tidelog start`. Its settings are made for tests: one partition for each of
the internal topics, no wait before a group's first round. Everything can be set otherwise.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.testing.lines import LogLines, thread_name

if TYPE_CHECKING:
    from tidelog.server.broker import Broker as ServerBroker

log = logging.getLogger("tidelog.server")

START_SECONDS = 60.0
STOP_SECONDS = 60.0

SETTINGS_FOR_TESTS = {
    "group.initial.rebalance.delay.ms": "0",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Broker:
    """`with Broker() as broker:` runs one; `broker.bootstrap_servers` is what any Kafka client needs.

    Settings are those of server.properties, as keywords with underscores or as a dict:
    `Broker(auto_create_topics_enable=False)`. Data goes to a temporary folder, which `close` removes, unless
    log.dirs or log.dir is set.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        given = {name.replace("_", "."): value for name, value in {**(config or {}), **settings}.items()}
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
        """HOST:PORT of the first listener; it stays the same through stops and restarts."""
        if not self._address:
            raise RuntimeError("the broker was not started: use it as `with Broker() as broker:`")
        return self._address

    @property
    def host(self) -> str:
        return self.bootstrap_servers.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic, and return when it can be used."""
        from tidelog.clients.admin import Admin, NewTopic

        settings = {key.replace("_", "."): _text(value) for key, value in (configs or {}).items()}
        with Admin(self.bootstrap_servers, client_id="tidelog-testing") as admin:
            admin.create_topic(NewTopic(name, partitions, 1, configs=settings))

    # What a test can look at

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def data(self) -> str:
        """The log folder, the first one where log.dirs names several."""
        if given := self._given_folders:
            return given.split(",")[0]
        if not self._folder:
            raise RuntimeError("the broker was not started, or is closed: it has no folder")
        return self._folder

    @property
    def _given_folders(self) -> str:
        return self.settings.get("log.dirs") or self.settings.get("log.dir", "")

    def log_lines(self, since: int = 0) -> list[str]:
        """What the broker logged, the last 10,000 lines; `since` leaves out so many of the first ones."""
        return [] if self._log is None else self._log.lines(since)

    @property
    def log_count(self) -> int:
        """How many lines it logged so far: to be given to `log_lines` later."""
        return 0 if self._log is None else self._log.count

    # Life

    def start(self) -> None:
        """Run, and return when requests are answered. After `stop`, with the data and the port of before."""
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
        # A forgotten close must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        try:
            self._thread.start()
            if not ready.wait(START_SECONDS):
                self._failure = TimeoutError(f"the broker did not start within {START_SECONDS:.0f} s")
        except BaseException:  # Ctrl-C, or the time limit of a test: nobody will close what did not begin
            self.close()
            raise
        if self._failure is not None:
            failure = self._failure
            self.close()
            raise failure

    def stop(self) -> None:
        """End it as an operator does; the data stays, for `start`."""
        self._check_process()
        self._stopping = True
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if loop is not None and stop is not None and thread.is_alive():
            with suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"the broker on {self._address} did not stop within {STOP_SECONDS:.0f} s")
        self._thread = self._loop = self._stop = None
        if self._log is not None:
            self._log.detach()

    def restart(self) -> None:
        """Stop and start again on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder. Harmless when called again, and in a process forked from its own."""
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
            stop.set()  # before there was a loop to tell it to
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
    """The listeners with the ports that the system chose, so that a restart takes the same."""
    return ",".join(
        str(replace(endpoint, port=int(broker.addresses[endpoint.listener].rpartition(":")[2])))
        for endpoint in broker.config.endpoints
    )


def _forgotten(folder: str, process: int) -> None:
    """Remove the folder of a broker that nobody closed; not at the end of a process that was forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(
            f"a broker was not closed; its folder {folder} is removed", ResourceWarning, stacklevel=2
        )


def _text(value: object) -> str:
    """A setting as it stands in server.properties."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
