"""The process of a broker's console: `python -m tidelog.console.process LINK LISTENER`, two descriptors.

The broker starts it and hands it the link, over which settings come and questions go, and the bound socket.
It ends when the broker says so, and at once when the broker is gone. It is a guest beside the broker: when a
search over a large topic and a produce want the same core, the produce goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import platform
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from struct import Struct as Packing
from typing import TYPE_CHECKING, Final

from tidelog.config.values import ConfigError
from tidelog.console.broker_link import (
    ConsoleSettings,
    Failed,
    FromBroker,
    Levels,
    LogLine,
    Message,
    Ready,
    Stop,
    frame,
    from_broker,
    read_message,
    receive_settings,
)

if TYPE_CHECKING:
    from tidelog.console.remote_broker import RemoteBroker
    from tidelog.console.server import Console

NICENESS: Final = 5
"""A third of the share of a process of normal priority, when a core is wanted by both."""

SLICE_NS: Final = 3_000_000
"""The time that the console asks to run at a stretch: longer than what others have, which is 2.8 ms at most.
Linux 6.12 and later lets a process that wakes up and asks for less, as the broker does, interrupt it at once.
Otherwise the broker waits until the console has run for most of a millisecond, or for the next tick of the
clock. A process that had to wait may catch up with twice its slice, so it is no longer than it has to be.
"""

SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call by machine; Python has no function for it."""

IDLE_NICENESS: Final = 19
"""Where the system has no SCHED_IDLE."""

OTHERS: Final = "tidelog.console"
"""The logger of lines that other packages log, such as the HTTP server."""

SCHED_ATTR: Final = Packing("=IIQiIQQQ")
"""Size, policy, flags, niceness, priority, and the times of run, deadline and period."""

_PR_SET_PDEATHSIG: Final = 1


class LinkHandler(logging.Handler):
    """Sends log lines to the broker, whose levels decide and whose handlers write them."""

    def __init__(self, send: Callable[[Message], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._send = send
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name if record.name.startswith("tidelog") else OTHERS
        fields = {str(key): str(value) for key, value in getattr(record, "fields", {}).items()}
        if record.exc_info:
            fields["error"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        line = LogLine(name, record.levelno, record.getMessage(), fields)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._send, line)


def set_levels(levels: dict[str, int]) -> None:
    """The broker's levels of its loggers; lines of level INFO are always sent, and the broker decides."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(min(level, logging.INFO))


def yield_to_broker(policy: str) -> None:
    """Take the place beside the broker that `console.scheduling.policy` gives, with all later threads.

    An idle process starves while other processes fill every core, when somebody looks for the reason. A batch
    process has its share of them, and a broker that wakes up interrupts it as fast.
    """
    if policy == "normal":
        return
    with contextlib.suppress(OSError):
        if sys.platform.startswith("linux"):
            os.nice(NICENESS)
            scheduler = os.SCHED_IDLE if policy == "idle" else os.SCHED_BATCH
            os.sched_setscheduler(0, scheduler, os.sched_param(0))
            _ask_for_slice(scheduler, SLICE_NS)
        else:
            os.nice(IDLE_NICENESS if policy == "idle" else NICENESS)


def _ask_for_slice(scheduler: int, nanoseconds: int) -> None:
    """Ask for a time to run at a stretch (sched_setattr). A system that cannot do that ignores it."""
    call = SCHED_SETATTR.get(platform.machine())
    if call is None:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = SCHED_ATTR.pack(SCHED_ATTR.size, scheduler, 0, niceness, 0, nanoseconds, 0, 0)
    ctypes.CDLL(None).syscall(ctypes.c_long(call), 0, attributes, 0)


def end_with_broker() -> None:
    """Let the system kill this process with the broker: an orphaned console would keep its port.

    Where the system cannot do that, or if the broker has died before, the console ends when the link is
    closed.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def run(settings: ConsoleSettings, link: socket.socket, listener: socket.socket) -> None:
    """Serve until the broker sends Stop. Raises the error of a failed start."""
    reader, writer = await asyncio.open_unix_connection(sock=link)

    def send(message: Message) -> None:
        if not writer.is_closing():
            writer.write(frame(message))

    set_levels(settings.levels)
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger().addHandler(LinkHandler(send, asyncio.get_running_loop()))
    console, broker = _console(settings, listener, send)
    stop = asyncio.Event()
    # The modules and templates live as long as the process: the garbage collector need not visit them.
    gc.collect()
    gc.freeze()
    listening = asyncio.create_task(_listen(reader, broker, stop))
    await console.serve(stop, lambda: send(Ready()))
    listening.cancel()
    writer.close()


def _console(
    settings: ConsoleSettings, listener: socket.socket, send: Callable[[Message], None]
) -> tuple[Console, RemoteBroker]:
    from tidelog.console.access import Access
    from tidelog.console.access_file import read_settings
    from tidelog.console.clusters import Cluster, Clusters
    from tidelog.console.records.rules import RecordRules, RulesError
    from tidelog.console.remote_broker import RemoteBroker
    from tidelog.console.server import Console

    broker = RemoteBroker(settings.broker_id, send, reads_files=settings.reads_files)
    cluster = Cluster(
        settings.cluster_name, settings.client, local=broker, pipelines=tuple(settings.pipelines)
    )
    access = Access(read_only=settings.read_only, settings=read_settings(settings.access_file))
    try:
        rules = RecordRules.load(settings.rules_file) if settings.rules_file else None
    except RulesError as error:
        raise RulesError(f"console.rules.file={settings.rules_file}: {error}") from None
    hosts = settings.allowed_hosts
    return Console(listener, Clusters([cluster]), access, rules=rules, allowed_hosts=hosts), broker


async def _listen(reader: asyncio.StreamReader, broker: RemoteBroker, stop: asyncio.Event) -> None:
    """Take the messages of the broker."""
    while (message := await read_message(reader, from_broker)) is not None:
        _take(message, broker, stop)
    os._exit(0)  # the broker is gone: nothing that is under way could be answered


def _take(message: FromBroker, broker: RemoteBroker, stop: asyncio.Event) -> None:
    match message:
        case Levels():
            set_levels(message.levels)
        case Stop():
            stop.set()
        case ConsoleSettings():
            raise ValueError("settings come once")
        case _:
            broker.take(message)


def main() -> int:
    """Run the console. Returns 0 after a stop, 1 after a failure, whose reason the broker gets."""
    # Signals to a group or a service reach the console too: it ends when the broker says so.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    end_with_broker()
    link, listener = (socket.socket(fileno=int(text)) for text in sys.argv[1:3])
    settings = receive_settings(link)
    if settings is None:
        return 0
    yield_to_broker(settings.scheduling_policy)
    spare = link.dup()  # the loop closes its own
    try:
        asyncio.run(run(settings, link, listener))
    except Exception as error:
        from tidelog.console.records.rules import RulesError

        is_sentence = isinstance(error, ConfigError | OSError | RulesError)
        trace = "" if is_sentence else traceback.format_exc()
        spare.setblocking(True)
        with contextlib.suppress(OSError):
            spare.sendall(frame(Failed(str(error) or type(error).__name__, trace)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
