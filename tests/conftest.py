"""What holds for every test."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import secure_clients, spark_jvm

# How long an example takes says something of the machine, nothing of the code.
settings.register_profile("without-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without-deadline")

secure_clients.install_if_secured()
spark_jvm.install()


def pytest_configure() -> None:
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be what tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    from tests.support import planted  # after the clients have their logins

    planted.install()


TESTS = Path(__file__).parent

LONGEST = (
    "cli/test_demo.py",
    "exactly_once/test_stories.py",
    "replication/test_moves.py",
    "replication/test_nemesis.py",
    "simulation/test_seeds.py",
    "spark/test_cluster_restarts.py",
    "spark/test_collect.py",
    "spark/test_detectors.py",
    "spark/test_exactly_once_kills.py",
    "spark/test_pipeline_cluster.py",
    "spark/test_pipeline_docs.py",
    "spark/test_pipeline_kills.py",
    "spark/test_running_batch.py",
    "storage/cleaner/test_kills.py",
)
"""The files with a test of 20 seconds or more. They come first: a worker that begins such a test when the
others have nothing left makes the run longer by all of it."""


def pytest_collection_finish() -> None:
    """Leave tests and imported modules out of garbage collections: they stay until the end of the run."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {TESTS / name for name in LONGEST}
    items.sort(key=lambda item: item.path not in first)
