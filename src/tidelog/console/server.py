"""ConsoleServer: the console on a thread and a loop of its own, until it is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

import uvicorn

from tidelog.console.access import Access
from tidelog.console.app import make_app
from tidelog.console.clusters import Clusters
from tidelog.console.records.rules import RecordRules

log = logging.getLogger("tidelog.console")

STOP_SECONDS: Final = 5.0
SWITCH_SECONDS: Final = 0.0005
BACKLOG: Final = 128


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
    ) -> None:
        """`make_clusters` is called on the console's loop. Raises OSError if the address cannot be bound."""
        self._make_clusters = make_clusters
        self._access = access
        self._rules = rules
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """http://HOST:PORT with the port that the system chose."""
        host, port = self._socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_loopback(self) -> bool:
        host = str(self._socket.getsockname()[0])
        return host.startswith("127.") or host == "::1"

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
            self._socket.close()
            return
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        self._thread.join(STOP_SECONDS * 2)
        if self._thread.is_alive():
            log.warning("the console did not stop within %d s", STOP_SECONDS * 2)

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        interval = sys.getswitchinterval()
        # The broker's thread waits for the interpreter this long at most while the console computes.
        sys.setswitchinterval(min(interval, SWITCH_SECONDS))
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._ready.is_set():
                log.exception("the console ended")
        finally:
            sys.setswitchinterval(interval)
            self._socket.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        clusters = self._make_clusters()
        app = make_app(clusters, self._access, rules=self._rules, only_local_names=self.is_loopback)
        server = uvicorn.Server(
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
        for cluster in clusters:
            # A cluster that asks who connects is sampled as those who have logged in.
            if cluster.local is not None or not app.state.access.needs_login:
                cluster.start_sampling()
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            self._ready.set()
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            app.state.site.stopping.set()
            server.should_exit = True
            await asyncio.wait([serving], timeout=STOP_SECONDS)
            await app.state.access.close()
            await clusters.close()
