"""A C program in place of a broker: it receives Produce requests, appends them to a file, and answers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import load
from broker import Broker, BrokerFailed


@contextmanager
def server(folder: Path) -> Iterator[Broker]:
    """The program of floor.c, which `loadgen latency` takes for a broker. Its file in `folder` is removed."""
    with tempfile.NamedTemporaryFile(prefix="tidelog-floor-", dir=folder) as file:
        words = [str(load.build("floor")), file.name]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                port = process.stdout.readline().strip()
                if not port:
                    raise BrokerFailed(f"floor ended with status {process.wait()}")
                yield Broker("127.0.0.1", int(port), process.pid)
            finally:
                process.terminate()
