"""Console: the pages and the API on a bound socket; ConsoleServer runs one on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socket import socket
from typing import Final
from urllib.parse import urlsplit

import uvicorn

from tidelog.console.access import Access
from tidelog.console.allowed_hosts import AllowedHosts
from tidelog.console.app import make_app
from tidelog.console.clusters import Clusters
from tidelog.console.listener import bind, url_of
from tidelog.console.records.rules import RecordRules

log = logging.getLogger("tidelog.console")

STOP_SECONDS: Final = 5.0
READY_POLL_SECONDS: Final = 0.005


class _Server(uvicorn.Server):
    """Without signal handlers: the process that runs it decides when it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Console:
    """Serves the pages of clusters on a listening socket."""

    def __init__(
        self,
        listener: socket,
        clusters: Clusters,
        access: Access | None = None,
        *,
        rules: RecordRules | None = None,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._listener = listener
        self._clusters = clusters
        hosts = _allowed_hosts(access or Access(), allowed_hosts)
        self._app = make_app(clusters, access, rules=rules, allowed_hosts=hosts)

    async def serve(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Answer requests until `stop` is set; calls `ready` when it answers. Closes clients and socket."""
        app = self._app
        server = _Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=1,
            )
        )
        app.state.access.start()
        for cluster in self._clusters:
            # Another cluster that needs a login is sampled only when a principal first reads its lags.
            if cluster.local is not None or not app.state.access.needs_login:
                cluster.start_sampling()
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(READY_POLL_SECONDS)
            ready()
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            app.state.site.stopping.set()
            server.should_exit = True
            await asyncio.wait([serving], timeout=STOP_SECONDS)
            await app.state.access.close()
            await self._clusters.close()


def _allowed_hosts(access: Access, names: Iterable[str]) -> AllowedHosts:
    """The names that were given, and the one of `public_url`. With a login all addresses count, too."""
    public = urlsplit(access.settings.public_url).hostname or ""
    return AllowedHosts([*names, public], any_address=access.needs_login)


class ConsoleServer:
    """Binds at once, so that a port in use is reported; `start` begins to answer, `close` ends the thread."""

    def __init__(
        self,
        host: str,
        port: int,
        make_clusters: Callable[[], Clusters],
        access: Access | None = None,
        *,
        rules: RecordRules | None = None,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        """`make_clusters` is called on the console's loop. Raises OSError if the address cannot be bound."""
        self._make_clusters = make_clusters
        self._access = access
        self._rules = rules
        self._allowed_hosts = (host, *allowed_hosts)
        self._listener = bind(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """http://HOST:PORT with the port that the system chose."""
        return url_of(self._listener)

    def start(self) -> None:
        """Start the thread, and return when the console answers. Raises what its start raised."""
        self._thread = threading.Thread(target=self._run, name="tidelog-console", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop answering, close the clients, and end the thread. Does nothing when called again."""
        if self._thread is None:
            self._listener.close()
            return
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        self._thread.join(STOP_SECONDS * 2)
        if self._thread.is_alive():
            log.warning("the console did not stop within %d s", STOP_SECONDS * 2)

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._ready.is_set():
                log.exception("the console ended")
        finally:
            self._listener.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        console = Console(
            self._listener,
            self._make_clusters(),
            self._access,
            rules=self._rules,
            allowed_hosts=self._allowed_hosts,
        )
        await console.serve(self._stop, self._ready.set)
