"""Handler consumers as processes: killed, joined by others and stopped, they lose nothing.

Each handled record is a line in a file: who handled it, the partition, the offset.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.test_handlers import committed, make_topic, write
from tests.support.scale import scale
from tests.support.wait import eventually

NewName = Callable[[str], str]

# The handler takes a while for each record: processes are killed and added while handlers run.
HANDLERS = """\
import os, time

class Handler:
    def __init__(self, stream):
        self.options = stream.options
        self.file = os.open(self.options["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def on_message(self, record):
        time.sleep(self.options["seconds"])
        os.write(self.file, f"{os.getpid()} {record.partition} {record.offset}\\n".encode())
"""

PARTITIONS = 4


class Crew:
    """Processes of one group on one topic."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = f"group-{topic}"
        self.handled_file = folder / "handled"
        self.handled_file.touch()
        self.folder = folder
        self.members: list[subprocess.Popen[bytes]] = []
        (folder / "crew_handlers.py").write_text(HANDLERS)

    def start(self, **settings: object) -> int:
        """One more process; its id."""
        more = "\n".join(f'{name.replace("_", ".")} = "{value}"' for name, value in settings.items())
        file = self.folder / f"crew-{len(self.members)}.toml"
        file.write_text(
            f"""
            [consumer]
            bootstrap.servers = "{self.bootstrap}"
            group.id = "{self.group}"
            auto.offset.reset = "earliest"
            auto.commit.interval.ms = 100
            {more}
            [topics."{self.topic}"]
            streams = 2
            handler = "crew_handlers:Handler"
            options = {{ file = "{self.handled_file}", seconds = 0.002 }}
            """
        )
        with (self.folder / f"crew-{len(self.members)}.log").open("wb") as log:
            command = [sys.executable, "-m", "tidelog", "consume-with", str(file)]
            self.members.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        return self.members[-1].pid

    def stop(self, index: int) -> None:
        member = self.members[index]
        member.send_signal(signal.SIGTERM)
        assert member.wait(30) == 0, self.logs()

    def kill(self, index: int) -> None:
        self.members[index].kill()
        self.members[index].wait()

    def handled(self) -> list[tuple[int, int, int]]:
        """Process, partition, offset."""
        lines = self.handled_file.read_text().splitlines()
        return [(int(pid), int(partition), int(offset)) for pid, partition, offset in map(str.split, lines)]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        def probe() -> bool:
            for member in self.members:
                assert member.poll() in (None, 0, -signal.SIGKILL), self.logs()
            return condition()

        try:
            eventually(probe, what, 60, interval=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def covers(self, count: int) -> bool:
        """Whether each of the first records of every partition was handled."""
        offsets = defaultdict(set)
        for _, partition, offset in self.handled():
            offsets[partition].add(offset)
        return all(offsets[partition] >= set(range(count)) for partition in range(PARTITIONS))

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("crew-*.log")))


@pytest.fixture
def crew(bootstrap: str, new_name: NewName, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(bootstrap, make_topic(bootstrap, new_name("crew"), PARTITIONS), tmp_path)
    yield made
    for index in range(len(made.members)):
        made.kill(index)


def test_a_kill_loses_nothing_and_what_was_committed_is_not_done_again(crew: Crew) -> None:
    write(crew.bootstrap, crew.topic, 300, PARTITIONS)
    seeded = random.Random(7)
    for _ in range(scale(2, 10)):
        before = len(crew.handled())
        # A static member that comes back has its partitions at once.
        pid = crew.start(group_instance_id="one")
        crew.wait_for(lambda before=before: len(crew.handled()) > before + 40, "some are handled")  # type: ignore[misc]
        crew.wait_for(lambda: seeded.random() < 0.3, "a moment passes")
        crew.kill(-1)
        kept = [max(offset, 0) for offset in committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS)]
        mine = [(partition, offset) for who, partition, offset in crew.handled() if who == pid]
        for partition in range(PARTITIONS):
            offsets = [offset for at, offset in mine if at == partition]
            assert offsets == sorted(set(offsets)), "a process handles a partition once and in order"
            # Whatever was committed had been handled by somebody.
            done = {offset for _, at, offset in crew.handled() if at == partition}
            assert done >= set(range(kept[partition]))
        lines = len(crew.handled())
        assert sum(kept) <= lines
    kept = [max(offset, 0) for offset in committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS)]
    last = crew.start(group_instance_id="one")
    crew.wait_for(lambda: crew.covers(300), "all are handled in the end")
    crew.stop(-1)
    for partition in range(PARTITIONS):
        offsets = [offset for who, at, offset in crew.handled() if (who, at) == (last, partition)]
        assert offsets == list(range(kept[partition], 300)), "the next process begins at what was committed"
    assert committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS) == [300] * PARTITIONS


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=pytest.mark.needs("group.version"))]
)
def test_two_processes_share_the_partitions_and_hand_them_over_in_order(crew: Crew, protocol: str) -> None:
    settings = {"group_protocol": protocol}
    if protocol == "classic":
        settings["heartbeat_interval_ms"] = "300"  # the first soon learns of the second
    first = crew.start(**settings)
    written = 0

    def goes_on(condition: Callable[[], bool]) -> Callable[[], bool]:
        """Whether a condition holds; as long as it does not, there is more to do."""

        def probe() -> bool:
            nonlocal written
            if len(crew.handled()) >= (written - 10) * PARTITIONS:
                write(crew.bootstrap, crew.topic, 20, PARTITIONS, first=written)
                written += 20
            return condition()

        return probe

    def handled_by(pid: int) -> int:
        return sum(who == pid for who, _, _ in crew.handled())

    crew.wait_for(goes_on(lambda: handled_by(first) > 100), "the first works")
    second = crew.start(**settings)
    crew.wait_for(goes_on(lambda: handled_by(second) > 100), "the second works")
    crew.stop(0)
    before = len(crew.handled())
    crew.wait_for(goes_on(lambda: len(crew.handled()) > before + 100), "the second goes on alone")
    crew.wait_for(lambda: crew.covers(written), "all are handled")
    crew.stop(1)
    for partition in range(PARTITIONS):
        # Members that come and go in order hand partitions over without doing anything twice.
        offsets = [offset for _, at, offset in crew.handled() if at == partition]
        assert offsets == list(range(written)), crew.logs()
    assert committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS) == [written] * PARTITIONS


@pytest.mark.long
def test_a_process_that_froze_beyond_its_session_does_no_harm_when_it_wakes(crew: Crew) -> None:
    session = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}
    count = 1500
    write(crew.bootstrap, crew.topic, count, PARTITIONS)
    first = crew.start(**session)
    crew.wait_for(lambda: len(crew.handled()) > 200, "the first works")
    crew.members[0].send_signal(signal.SIGSTOP)
    before = committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS)
    uncommitted = len(crew.handled()) - sum(max(offset, 0) for offset in before)
    second = crew.start(**session)
    crew.wait_for(
        lambda: len({at for who, at, _ in crew.handled() if who == second}) == PARTITIONS, "it takes over"
    )
    crew.members[0].send_signal(signal.SIGCONT)
    crew.wait_for(lambda: crew.covers(count), "all are handled")
    crew.stop(0)
    crew.stop(1)
    for partition in range(PARTITIONS):
        taken = [offset for who, at, offset in crew.handled() if (who, at) == (second, partition)]
        assert taken[0] == max(before[partition], 0), "the other begins at what was committed"
    # What the frozen one had in its queue is not handled by it any more, but for a few records at hand.
    again = len(crew.handled()) - count * PARTITIONS - uncommitted
    assert again < 100, f"{again} records were handled again that were not due"
    assert committed(crew.bootstrap, crew.group, crew.topic, PARTITIONS) == [count] * PARTITIONS
    assert first != second
