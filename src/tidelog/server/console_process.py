"""ConsoleProcess: starts the console as a child process, answers its questions, and starts it again.

The console has an interpreter of its own, so that pages, searches and analyses never delay produces. It
inherits the bound socket and one end of a socket pair. Settings with passwords are sent through the pair.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

from tidelog.console.broker_link import (
    Ask,
    ConnectionsPart,
    ConsoleSettings,
    Failed,
    FiguresAnswer,
    FromConsole,
    Levels,
    LogLine,
    Message,
    QuestionFailed,
    Ready,
    Row,
    SnapshotPart,
    Stop,
    frame,
    from_console,
    read_message,
)
from tidelog.console.listener import url_of
from tidelog.server.console_changes import SnapshotChanges
from tidelog.server.console_view import ConsoleView, in_parts

log = logging.getLogger("tidelog.server")

MODULE: Final = "tidelog.console.process"
FIRST_DELAY: Final = 0.5
MOST_DELAY: Final = 30.0
CALM_SECONDS: Final = 60.0
"""A console that lived so long starts again after the first delay."""

STOP_SECONDS: Final = 10.0
"""It takes a tenth of a second, and a second more if a request is under way."""

END_POLL_SECONDS: Final = 0.01
LEVELS_SECONDS: Final = 1.0
LOGGER: Final = "tidelog.console"


class ConsoleProcess:
    """The console of this broker.

    `start` does not wait until the console answers: browsers wait in the backlog.
    """

    def __init__(self, listener: socket.socket, settings: ConsoleSettings, view: ConsoleView) -> None:
        self._listener = listener
        self._settings = settings
        self._view = view
        self._run: asyncio.Task[None] | None = None
        self._child: _Child | None = None
        self._is_stopping = False

    @property
    def url(self) -> str:
        return url_of(self._listener)

    @property
    def pid(self) -> int | None:
        """The process of the console; None while there is none."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> None:
        """Start the process. Raises OSError if the system cannot."""
        self._child = _Child(self._listener, self._settings, self._view)
        self._run = asyncio.get_running_loop().create_task(self._keep(self._child))

    async def close(self) -> None:
        """End the process, with one second for running requests. A second call does nothing."""
        self._is_stopping = True
        self._listener.close()
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
            self._run = None

    async def _keep(self, child: _Child | None) -> None:
        """Start the console again each time it ends, with growing delays."""
        delay = FIRST_DELAY
        while True:
            began = time.monotonic()
            reason = ""
            if child is None:
                try:
                    self._child = child = _Child(self._listener, self._settings, self._view)
                except OSError as error:
                    reason = str(error)
            if child is not None:
                reason = await child.serve()
                self._child = child = None
            if self._is_stopping:
                return
            if time.monotonic() - began >= CALM_SECONDS:
                delay = FIRST_DELAY
            log.error("the console ended and starts again in %.1f s: %s", delay, reason)
            await asyncio.sleep(delay)
            delay = min(delay * 2, MOST_DELAY)


class _Child:
    """One process of the console, from its start to its end."""

    def __init__(self, listener: socket.socket, settings: ConsoleSettings, view: ConsoleView) -> None:
        """Start the process. Raises OSError if the system cannot."""
        self._url = url_of(listener)
        self._view = view
        self._changes = SnapshotChanges(view.services)
        self._settings = settings
        self._levels = _levels()
        self._levels_at = time.monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._is_ready = False
        self._reason = ""
        self._answering: set[asyncio.Task[None]] = set()
        self._questions = asyncio.Lock()
        self._link, theirs = socket.socketpair()
        fds = (theirs.fileno(), listener.fileno())
        try:
            self.process = subprocess.Popen(
                # The child finds modules in the same folders as this process, not in the current folder.
                [sys.executable, "-P", "-m", MODULE, *map(str, fds)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C in a terminal is for the broker. A session of its own would also keep Ctrl-C away,
                # but Linux shares cores between sessions, and the lower priority would have no effect.
                process_group=0,
            )
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()

    async def serve(self) -> str:
        """Answer the console until it ends. Returns the reason of its end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._link)
        try:
            settings = self._settings
            settings.levels = self._levels
            self._send(settings)
            while (message := await read_message(reader, from_console)) is not None:
                self._take(message)
        finally:
            for task in self._answering:
                task.cancel()
            self._writer.close()
        await self._ended(STOP_SECONDS)
        return self._reason or _exit_reason(self.process.returncode)

    async def stop(self) -> None:
        """End the process: cleanly if it answers requests."""
        if self._is_ready:
            self._send(Stop())
            await self._ended(STOP_SECONDS)
        else:
            await self._ended(0)

    async def _ended(self, seconds: float) -> None:
        """Wait for the end of the process; kill it after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() >= deadline:
                if seconds:
                    log.warning("the console did not end within %.0f s and was killed", seconds)
                self.process.kill()
                self.process.wait()
                return
            await asyncio.sleep(END_POLL_SECONDS)

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    def _take(self, message: FromConsole) -> None:
        match message:
            case Ask():
                task = asyncio.get_running_loop().create_task(self._answer(message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case Ready():
                self._is_ready = True
                log.info("the console answers", extra={"fields": {"url": self._url, "pid": self.process.pid}})
            case LogLine():
                _log_line(message)
            case Failed():
                self._reason = message.reason
                if message.trace:
                    fields = {"error": message.trace.rstrip()}
                    log.error("the console failed: %s", message.reason, extra={"fields": fields})

    async def _answer(self, ask: Ask) -> None:
        """Answer one question at a time, so that no turn of the loop has the work of several."""
        try:
            async with self._questions:
                self._send_levels()
                await self._look(ask)
        except Exception as error:
            log.exception("a question of the console failed", extra={"fields": {"question": ask.question}})
            self._send(QuestionFailed(ask.number, str(error) or type(error).__name__))

    def _send_levels(self) -> None:
        """Send the levels of loggers if they changed. There are many loggers: at most once a second."""
        now = time.monotonic()
        if now - self._levels_at < LEVELS_SECONDS:
            return
        self._levels_at = now
        if (levels := _levels()) != self._levels:
            self._levels = levels
            self._send(Levels(levels))

    async def _look(self, ask: Ask) -> None:
        if ask.question == "figures":
            self._send(FiguresAnswer(ask.number, await self._view.figures()))
        elif ask.question == "connections":
            async for connections, is_last in self._view.connections():
                self._send(ConnectionsPart(ask.number, connections, is_last))
        else:
            changes = self._changes
            found = changes.rows() if ask.question == "snapshot" else changes.rows_of_topic(ask.topic)
            parts: AsyncIterator[tuple[list[Row], bool]] = in_parts(found)
            async for rows, is_last in parts:
                self._send(SnapshotPart(ask.number, rows, is_last))
                if self._writer is not None:
                    await self._writer.drain()


def _levels() -> dict[str, int]:
    """The levels of the console's loggers."""
    levels = {"tidelog": logging.getLogger("tidelog").getEffectiveLevel()}
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if name.startswith(("tidelog.console", "tidelog.clients")) and isinstance(logger, logging.Logger):
            levels[name] = logger.level or logger.getEffectiveLevel()
    return levels


def _log_line(line: LogLine) -> None:
    """Log a line of the console, if its level is on. Its text is whole: it has no arguments."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        logger.log(line.level, "%s", line.text, extra={"fields": line.fields})


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
