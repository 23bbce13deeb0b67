"""The options of every Java machine of Spark that a test starts, in this process or in another."""

from __future__ import annotations

import os

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""A session of a test lives for seconds or minutes: the second compiler takes more than it gives back, and a
collector with threads of its own takes them from the tests beside it."""


def install() -> None:
    """Give the options to every `spark-submit` below this process; what is set in the environment stays."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(name, QUICK)
