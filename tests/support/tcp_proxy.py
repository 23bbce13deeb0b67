"""A TCP proxy on the loop of a test, which cuts and holds connections."""

from __future__ import annotations

import asyncio


class TcpProxy:
    """`async with TcpProxy(host, port) as proxy` listens on `proxy.port`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.answers_pass = True
        """If not, the server gets the requests and its answers are lost."""
        self.swallowed = self.answered = self.held = 0
        """How many bytes of answers were lost and passed on, and how many bytes were ever held."""
        self.accepted = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections. New ones are accepted."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Pass nothing on, and do not answer new connections."""
        self._open.clear()

    def release(self) -> None:
        """Pass on what was held."""
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        await self._open.wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(upstream_writer)
        for source, sink, answers in (
            (reader, upstream_writer, False),
            (upstream_reader, writer, True),
        ):
            task = asyncio.ensure_future(self._pump(source, sink, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not self._open.is_set():
                    self.held += len(data)
                    await self._open.wait()
                if answers and not self.answers_pass:
                    self.swallowed += len(data)
                    continue
                if answers:
                    self.answered += len(data)
                writer.write(data)
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
