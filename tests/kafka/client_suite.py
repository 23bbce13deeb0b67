"""The tests of our clients and of the tools built on them, run against Apache Kafka 3.9 and 4.3.

`python -m tests.kafka.client_suite [kafka3] [kafka4] [-- what pytest takes]` starts each from its jars, runs
the tests on it, and lists what was left out and why. It ends with 1 when a test failed on one of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.groups.brokers import QUICK_GROUPS
from tests.kafka.jars import VERSIONS
from tests.kafka.servers import new_kafka

PROJECT = Path(__file__).parent.parent.parent
SUITE = ("tests/clients", "tests/cli")
# Groups as quick as those of the broker that the tests start otherwise; topics are made as Kafka makes them.
SETTINGS = {name: value for name, value in QUICK_GROUPS.items() if name != "auto.create.topics.enable"}
# Tests write records of the year 1970, which Kafka would delete the first time it looks for old ones.
A_DAY = str(24 * 3600 * 1000)
SETTINGS |= {"log.initial.task.delay.ms": A_DAY, "log.retention.check.interval.ms": A_DAY}


def run(kind: str, arguments: list[str]) -> int:
    """The exit code of the tests on one Kafka."""
    print(f"the clients on Apache Kafka {VERSIONS[kind]}", flush=True)
    options = ("-q", "-n", "2", "--dist", "loadfile", "-m", "not kafka and not long")
    command = [sys.executable, "-m", "pytest", *options, "-p", "tests.kafka.left_out", *(arguments or SUITE)]
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-clients-") as folder,
        new_kafka(kind, Path(folder), SETTINGS) as kafka,
    ):
        which = {"TIDELOG_TEST_BOOTSTRAP": kafka.bootstrap, "TIDELOG_TEST_BROKER": kind}
        return subprocess.run(command, cwd=PROJECT, env={**os.environ, **which}, check=False).returncode


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kinds, others = arguments[:end], arguments[end + 1 :]
    unknown = [kind for kind in kinds if kind not in VERSIONS]
    if unknown:
        print(f"{unknown[0]}: one of {', '.join(VERSIONS)} is possible", file=sys.stderr)
        return 2
    # Tests send it to programs that they start, also where whoever started this run ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    codes = {kind: run(kind, others) for kind in kinds or VERSIONS}
    for kind, code in codes.items():
        print(f"the clients on Apache Kafka {VERSIONS[kind]}: {'passed' if code == 0 else 'FAILED'}")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
