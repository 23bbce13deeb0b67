"""Keeps Spark's log out of a tool's output: it goes to a file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Spark's Python side logs every failed call with its stack trace; the pipeline reports the error itself.
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

# The logs of earlier runs are kept up to twice this size.
MOST_BYTES = 10 << 20


@contextmanager
def spark_writes_to(file: Path) -> Iterator[None]:
    """Processes started within the block, such as the JVM, write both outputs to the file."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > MOST_BYTES:
        file.replace(file.with_name(f"{file.name}.1"))
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with file.open("ab") as target:
        try:
            for number in (1, 2):
                os.dup2(target.fileno(), number)
            yield
        finally:
            for number, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, number)
                os.close(saved)
