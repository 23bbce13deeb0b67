"""Runs one broker as a process: settings, logging, signals, first screen and exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.config.values import ConfigError
from tidelog.records.loops import COMPILED
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.logs import set_levels, set_up_logging
from tidelog.server.open_addresses import open_address_lines

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger("tidelog.server")


class StartFailed(Exception):
    """The broker cannot start; the message says why and what to do."""


def run_broker(
    properties: Path | None, overrides: dict[str, str], ready_file: Path | None, log_level: str | None
) -> int:
    """Run a broker until a signal. Returns 0 after a clean stop, 1 after a failed start or a failure."""
    set_up_logging()
    try:
        config = BrokerConfig.load(properties, overrides)
        set_levels(log_level or config.tidelog_log_level, config.tidelog_log_levels)
        if ready_file is not None:
            _check_ready_file(ready_file)
    except (ConfigError, OSError, UnicodeDecodeError, StartFailed) as error:
        print(f"tidelog: {error}", file=sys.stderr)
        return 1
    for line in config.notes:
        log.info("%s", line)
    for line in (*config.warnings, *open_address_lines(config)):
        log.warning("%s", line)
    if not COMPILED:
        log.warning("the compiled module is not in use: the broker needs more CPU; `tidelog doctor` says why")
    _raise_descriptor_limit()
    return _run(config, ready_file)


def _run(config: BrokerConfig, ready_file: Path | None) -> int:
    from tidelog.network.loop import BrokerLoop
    from tidelog.server.broker import Broker

    loop = BrokerLoop(config.num_io_threads)
    asyncio.set_event_loop(loop)
    broker = Broker(config, loop)
    stop = asyncio.Event()

    def stop_asked(number: int) -> None:
        if stop.is_set():
            log.warning("already stopping: another signal changes nothing")
        else:
            log.info("stopping", extra={"fields": {"signal": signal.Signals(number).name}})
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked, number)

    async def life() -> int:
        try:
            await broker.start()
            keep_collections_short()
            _announce(broker, ready_file)
        except StartFailed as error:
            print(f"tidelog: {error}", file=sys.stderr)
            await broker.stop()
            return 1
        except Exception as error:
            log.critical("the start failed: %s", error, exc_info=error)
            await broker.stop()
            return 1
        failed = asyncio.ensure_future(broker.failed.wait())
        await asyncio.wait([failed, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        await broker.stop()
        return 1 if broker.failed.is_set() else 0

    try:
        return loop.run_until_complete(life())
    finally:
        loop.close()


def keep_collections_short() -> None:
    """Limit the pauses of the garbage collector to a millisecond or two.

    The objects of the start live as long as the broker, so the collector need not visit them. Later, a
    collection visits all young objects: with a million of them, of thousands of new partitions, it took 100
    ms. Full collections are rare, about one for each 100,000,000 new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 4_000)


def _announce(broker: Broker, ready_file: Path | None) -> None:
    """Write the ready file for programs, and print the first screen for people."""
    if ready_file is not None:
        try:
            ready_file.write_text(f"{broker.address}\n")
        except OSError as error:
            raise _ready_file_refused(ready_file, error.strerror or str(error)) from error
    try:
        print(broker.first_screen(), flush=True)
    except OSError as error:  # standard output is closed: the broker serves clients without it
        log.warning("the first screen could not be printed: %s", error)


def _check_ready_file(ready_file: Path) -> None:
    """Check before the start that the file can be written, without creating it."""
    folder = ready_file.parent
    if not folder.is_dir():
        raise _ready_file_refused(ready_file, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise _ready_file_refused(ready_file, f"the folder {folder} is not writable")


def _ready_file_refused(ready_file: Path, reason: str) -> StartFailed:
    return StartFailed(f"--ready-file {ready_file} cannot be written: {reason}")


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: each connection and open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            log.warning("at most %d files can be open at once: the limit could not be raised", soft)
