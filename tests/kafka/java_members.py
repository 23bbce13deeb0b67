"""Java consumers as members of groups: Kafka's VerifiableConsumer, whose events become lines of a history.

It tells each record that it reads, then that it read them, commits synchronously, and tells the outcome. Its
events carry the time in milliseconds, by which the lines of several members are put in order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.jars import JAVA, class_path
from tests.support.wait import eventually
from tidelog.simulation.checks.group_history import BROKER, Line

PROGRAM = "org.apache.kafka.tools.VerifiableConsumer"
QUICK = (
    "metadata.max.age.ms=400\nreconnect.backoff.ms=20\nreconnect.backoff.max.ms=100\nmax.poll.records=20\n"
)


@dataclass(slots=True, frozen=True)
class Told:
    """A line and when it was told."""

    time: int
    line: Line


class JavaMember:
    def __init__(
        self, folder: Path, name: str, kind: str, protocol: str, bootstrap: str, group: str, topic: str
    ) -> None:
        self.name = name
        self.output = folder / f"{name}.events"
        settings = folder / f"{name}.properties"
        settings.write_text(f"{QUICK}client.id={name}\n")
        classic = ("--session-timeout", "2000")
        if protocol == "classic":
            settings.write_text(settings.read_text() + "heartbeat.interval.ms=300\n")
        arguments = [
            *("--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic, "--verbose"),
            *("--group-protocol", protocol, "--consumer.config", str(settings)),
            *(classic if protocol == "classic" else ()),
        ]
        with self.output.open("wb") as output, (folder / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*JAVA, "-Xmx128m", "-cp", class_path(kind), PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=folder,
            )

    def leave(self) -> None:
        """As an operator ends it: it leaves its group."""
        self._process.terminate()
        self._process.wait(60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def events(self) -> list[dict[str, object]]:
        whole = self.output.read_bytes().rpartition(b"\n")[0]
        return [json.loads(text) for text in whole.splitlines() if text.startswith(b"{")]

    def count(self, event: str) -> int:
        return sum(found["name"] == event for found in self.events())

    def wait_for(self, event: str, count: int = 1) -> None:
        def told() -> bool:
            assert self.running, f"{self.name} ended: {self.events()[-3:]}"
            return self.count(event) >= count

        eventually(told, f"{self.name} tells {count} of {event}", 60, 0.05)

    def wait_for_more(self, event: str, count: int) -> None:
        self.wait_for(event, self.count(event) + count)

    def told(self) -> Iterator[Told]:
        for event in self.events():
            time = event["timestamp"]
            assert isinstance(time, int)
            yield from (Told(time, line) for line in self._lines(event))

    def _lines(self, event: dict[str, object]) -> Iterator[Line]:
        kind = event["name"]
        if kind in ("partitions_assigned", "partitions_revoked"):
            for topic, partition in _partitions(event["partitions"]):
                yield Line(self.name, str(kind).removeprefix("partitions_"), topic, partition)
        elif kind == "record_data":
            assert isinstance(event["offset"], int)
            assert isinstance(event["partition"], int)
            value, topic = str(event["value"]), str(event["topic"])
            yield Line(self.name, "read", topic, event["partition"], event["offset"], value)
        elif kind == "records_consumed":
            for topic, partition, last in _offsets(event["partitions"], "maxOffset"):
                yield Line(self.name, "committing", topic, partition, last + 1)
        elif kind == "offsets_committed":
            outcome = "committed" if event["success"] else "unsure"
            for topic, partition, offset in _offsets(event["offsets"], "offset"):
                yield Line(self.name, outcome, topic, partition, offset, str(event.get("error", "-")))


def _partitions(found: object) -> Iterator[tuple[str, int]]:
    assert isinstance(found, list)
    for entry in found:
        yield str(entry["topic"]), int(entry["partition"])


def _offsets(found: object, name: str) -> Iterator[tuple[str, int, int]]:
    assert isinstance(found, list)
    for entry in found:
        yield str(entry["topic"]), int(entry["partition"]), int(entry[name])


def history(members: Sequence[JavaMember], broker_falls: Sequence[int]) -> list[Line]:
    """The lines of all members in the order of their times, with those of the broker between them."""
    told = [entry for member in members for entry in member.told()]
    told += [Told(time, Line(BROKER, "killed")) for time in broker_falls]
    return [entry.line for entry in sorted(told, key=lambda entry: entry.time)]
