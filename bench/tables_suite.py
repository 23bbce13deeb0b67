"""Tables and pipelines, in turns with the commit before Delta: CPU time, since the broker shares the cores.

The code of that commit comes from git, into a temporary folder. Its compiled parts are those of today: their
sources are the same. Sizes are those of the targets; `--quick` takes a tenth.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from load import LoadFailed
from report import Figure
from suite import Bench, Skipped
from targets import figure

if TYPE_CHECKING:
    import pyarrow as pa

PROGRAM = Path(__file__).parent / "tables_load.py"
REPOSITORY = Path(__file__).parents[1]
BEFORE = "cc48c549"
"""The last commit whose tables were not Delta's."""
NOON = 1_767_268_800_000
MIDNIGHT = 1_767_225_600_000
LIMIT = 3600.0
COLLECTED, SMALL, ROWS, FIVE = 5_000_000, 300_000, 5_000_000, 100_000
INVITATIONS = (200_000, 1_000_000)
RING_EVERY = 10_000
"""One of so many invitations closes a ring of two."""
RING_ALERTS = "ml_invite_alerts"
ROUNDS = 2

Measurement = dict[str, float]


@contextmanager
def versions() -> Iterator[dict[str, Path]]:
    """The trees to measure: `now`, and `before` if git has that commit."""
    with tempfile.TemporaryDirectory(prefix="tidelog-before-") as folder:
        tree = Path(folder)
        packed = subprocess.run(
            ["git", "archive", BEFORE, "src"], cwd=REPOSITORY, stdout=subprocess.PIPE, check=False
        )
        if packed.returncode:
            raise Skipped(f"git has no commit {BEFORE} to compare with")
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        for compiled in (REPOSITORY / "src").rglob("*.so"):
            shutil.copy(compiled, tree / compiled.relative_to(REPOSITORY))
        for package in (REPOSITORY / "src").glob("pyspark_*"):
            # Spark imports every such package that is installed. One of today needs modules of today: an
            # empty package stands before it.
            found = tree / "src" / package.name
            if not found.exists():
                found.mkdir()
                (found / "__init__.py").touch()
        yield {"now": REPOSITORY, "before": tree}


def measure(tree: Path, part: str, bootstrap: str, folder: Path, size: int) -> Measurement:
    """One part with the code of a tree, on an empty folder."""
    with tempfile.TemporaryDirectory(prefix="tidelog-tables-", dir=folder) as data:
        words = [sys.executable, str(PROGRAM), part, bootstrap, data, "--size", str(size)]
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{PROGRAM.parent}"}
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False, env=environment
        )
    if done.returncode:
        raise LoadFailed(f"{part} with the code of {tree} ended with status {done.returncode}")
    found: Measurement = json.loads(done.stdout.splitlines()[-1])
    return found


class Turns:
    """Measurements of one part by version, round by round."""

    def __init__(self, bench: Bench, part: str, bootstrap: str, size: int) -> None:
        self.found: dict[str, list[Measurement]] = {"now": [], "before": []}
        with versions() as trees:
            for _ in range(min(ROUNDS, bench.rounds)):
                for name, tree in trees.items():
                    self.found[name].append(measure(tree, part, bootstrap, bench.source.folder, size))

    def ratios(self, what: str) -> list[float]:
        pairs = zip(self.found["now"], self.found["before"], strict=True)
        return [now[what] / before[what] for now, before in pairs]

    def more(self, what: str) -> list[float]:
        pairs = zip(self.found["now"], self.found["before"], strict=True)
        return [now[what] - before[what] for now, before in pairs]

    def now(self, what: str) -> list[float]:
        return [one[what] for one in self.found["now"]]

    def note(self, what: str, unit: str) -> str:
        now, before = (statistics.median(one[what] for one in self.found[name]) for name in self.found)
        return f"{now:,.1f} {unit} now, {before:,.1f} before; load {os.getloadavg()[0]:.1f}"


def collect(bench: Bench) -> list[Figure]:
    """`collect` from the logs to the tables."""
    _needs_spark()
    events = bench.scaled(COLLECTED)
    with bench.source.broker() as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        generate(bootstrap, events, broken=0.001)
        turns = Turns(bench, "collect", bootstrap, events)
    return [
        figure("tables collect", turns.ratios("cpu"), turns.note("cpu", "CPU-s")),
        figure("tables collect rate", [events / seconds for seconds in turns.now("seconds")]),
        figure("tables collect memory", turns.more("peak"), turns.note("peak", "MB")),
    ]


def small(bench: Bench) -> list[Figure]:
    """`collect` in micro-batches of 1,000 rows."""
    _needs_spark()
    with bench.source.broker() as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        generate(bootstrap, bench.scaled(SMALL))
        turns = Turns(bench, "small", bootstrap, bench.scaled(SMALL))
    return [figure("tables small", turns.ratios("cpu"), turns.note("cpu", "CPU-s"))]


def merge(bench: Bench) -> list[Figure]:
    """100,000 changed keys into a table of 5,000,000 rows, and the table read."""
    _needs_spark()
    turns = Turns(bench, "merge", "", bench.scaled(ROWS))
    return [
        figure("tables merge", turns.now("seconds")),
        figure("tables merge cpu", turns.ratios("cpu"), turns.note("cpu", "CPU-s")),
        figure("tables merge memory", turns.now("peak")),
        figure("tables merge read", turns.ratios("read"), turns.note("read", "CPU-s")),
        figure("tables merge first read", turns.ratios("first read"), turns.note("first read", "CPU-s")),
    ]


def commits(bench: Bench) -> list[Figure]:
    """A commit after 100 and after 10,000 batches."""
    import table_commits

    with tempfile.TemporaryDirectory(dir=bench.source.folder) as folder:
        early, late = table_commits.commit_times(Path(folder)).values()
    note = f"{early * 1000:.1f} and {late * 1000:.1f} CPU-ms; load {os.getloadavg()[0]:.1f}"
    return [figure("tables commits", late / early, note)]


def rings(bench: Bench) -> list[Figure]:
    """A day of invitations through invite-watch, from the log to the alerts."""
    _needs_spark()
    few, many = (bench.scaled(count) for count in INVITATIONS)
    with bench.source.broker() as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        invite(bootstrap, few)
        turns = Turns(bench, "rings", bootstrap, few)
        check_rings(bootstrap, few, sum(map(len, turns.found.values())))
    with bench.source.broker() as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        invite(bootstrap, many)
        alone = measure(REPOSITORY, "rings", bootstrap, bench.source.folder, many)
        check_rings(bootstrap, many, 1)
    return [
        figure("tables rings", turns.ratios("cpu"), turns.note("cpu", "CPU-s")),
        figure("tables rings many", alone["seconds"], f"{alone['cpu']:,.0f} CPU-s"),
        figure("tables rings memory", alone["peak"]),
    ]


def five(bench: Bench) -> list[Figure]:
    """The five pipelines over the events of `make run`, with its settings and the start of Spark."""
    _needs_spark()
    with bench.source.broker() as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        generate(bootstrap, bench.scaled(FIVE), broken=0.01, cheaters=2)
        turns = Turns(bench, "five", bootstrap, bench.scaled(FIVE))
    return [
        figure("tables five", turns.ratios("seconds"), turns.note("seconds", "s")),
        figure("tables five cpu", turns.ratios("cpu"), turns.note("cpu", "CPU-s")),
    ]


def generate(bootstrap: str, events: int, broken: float = 0.0, cheaters: int = 0) -> None:
    from tidelog.spark.pipelines.generator import Plan
    from tidelog.spark.pipelines.generator_scenes import Cheaters
    from tidelog.spark.pipelines.generator_writer import write

    write(Plan(events, NOON, broken=broken, cheaters=Cheaters.few(cheaters)), bootstrap)


def invite(bootstrap: str, count: int) -> None:
    """Invitations of a day: everybody invites ten others, and one in 10,000 closes a ring of two.

    The detector's time hardly depends on the rings: they show that it finds what it looks for.
    """
    import pyarrow as pa

    from tidelog.clients.producer.blocking import Producer
    from tidelog.spark.pipelines.events import INVITES
    from tidelog.spark.pipelines.generator import Plan
    from tidelog.spark.pipelines.generator_writer import Writer

    settings = {"bootstrap.servers": bootstrap}
    Writer(Plan(0, MIDNIGHT), settings).create_topics(4)
    day = 86_400_000
    with Producer(settings) as producer:
        for first in range(0, count, 100_000):
            numbers = list(range(first, min(first + 100_000, count)))
            inviters, invitees = zip(*map(invitation, numbers), strict=True)
            times = pa.array([MIDNIGHT + number * day // count for number in numbers])
            producer.send_arrow(_records(numbers, inviters, invitees, times), INVITES.topic).result()


def invitation(number: int) -> tuple[int, int]:
    """The inviter and the invitee of an invitation. Some users invite their own inviters."""
    if number > 1 and number % RING_EVERY == 1:
        return number, (number - 1) // 10
    return number // 10, number + 1


def check_rings(bootstrap: str, count: int, runs: int) -> None:
    """Raise LoadFailed unless each run over these invitations has raised the alert of every ring once."""
    from tidelog import Consumer

    wanted = runs * sum(invitation(number)[0] > invitation(number)[1] for number in range(count))
    found = 0
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        keys = [(RING_ALERTS, each.partition) for each in consumer.partitions_for(RING_ALERTS)]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        consumer.seek_to_beginning(*keys)
        while any(consumer.position(key) < ends[key] for key in keys):
            records = consumer.poll(timeout=10)
            found += sum(json.loads(record.value or b"{}").get("rule") == "ring" for record in records)
    if found != wanted:
        raise LoadFailed(f"{runs} runs raised {found} alerts of rings, not {wanted}")


def _records(
    numbers: list[int], inviters: Sequence[int], invitees: Sequence[int], times: pa.Array
) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    def text(values: object) -> pa.Array:
        return pc.cast(pa.array(values), pa.string())

    inviter, invitee = text(inviters), text(invitees)
    pieces = [
        '{"version":1,"device_id":"d","ip":"10.0.0.1","code":"c","event_id":"',
        text(numbers),
        '","ts":',
        pc.cast(times, pa.string()),
        ',"user_id":"',
        inviter,
        '","invitee_id":"',
        invitee,
        '","invitee_device_id":"',
        text(numbers),
        '","invitee_ip":"',
        text([number // 10 for number in numbers]),
        '"}',
    ]
    values = pc.binary_join_element_wise(*pieces, "")
    return pa.table({"key": inviter, "value": values.cast(pa.binary()), "timestamp": times})


def _needs_spark() -> None:
    try:
        from tidelog.spark.session import why_spark_cannot_run
    except ImportError as error:
        raise Skipped(f"Spark is not installed: {error}") from None
    missing = why_spark_cannot_run()
    if missing is not None:
        raise Skipped(missing)
