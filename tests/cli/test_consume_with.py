"""`tidelog consume-with` runs what a file declares, says how it goes, and ends in order when told to."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.old_properties import CONSUMER, PRODUCER
from tests.support.contents import produce
from tests.support.wait import eventually
from tidelog import Admin, NewTopic

NewName = Callable[[str], str]

HANDLERS = """\
import logging

class Handler:
    def __init__(self, stream):
        self.file = open(stream.options["file"], "a")

    def on_message(self, record):
        if record.value == b"poison":
            raise ValueError("not to be taken")
        if record.value == b"tell":
            logging.getLogger("shop").info("told by a handler")
        self.file.write(f"{record.offset}\\n")
        self.file.flush()

    def close(self):
        self.file.write("closed\\n")
        self.file.close()
"""


class Shop:
    """A topic, handlers for it, and a file that brings them together."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.dead = f"dead-{topic}"
        self.lines_file = folder / "lines"
        self.lines_file.touch()
        self.file = folder / "shop.toml"
        (folder / "shop_handlers.py").write_text(HANDLERS)
        self.declare()
        self.processes: list[subprocess.Popen[str]] = []

    def declare(self, more: str = "", module: str = "shop_handlers") -> None:
        self.file.write_text(
            f"""
            [consumer]
            bootstrap.servers = "{self.bootstrap}"
            group.id = "group-{self.topic}"
            auto.offset.reset = "earliest"
            {more}
            [errors]
            retries = 1
            backoff_ms = 1
            dead_letter_topic = "{self.dead}"
            [topics.{self.topic}]
            handler = "{module}:Handler"
            options = {{ file = "{self.lines_file}" }}
            """
        )

    def make(self) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, 1, 1)])
            admin.create_topics([NewTopic(self.dead, 1, 1)])

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, "-m", "tidelog", "consume-with", str(self.file), *flags]

    def start(self, *flags: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            self.command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(started)
        return started

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=60)

    def lines(self) -> list[str]:
        return self.lines_file.read_text().split()


@pytest.fixture
def shop(bootstrap: str, new_name: NewName, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(bootstrap, new_name("shop"), tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_handles_until_it_is_told_to_stop(shop: Shop, number: int) -> None:
    shop.make()
    produce(shop.bootstrap, {(shop.topic, 0): [b"a", b"poison", b"tell"]})
    process = shop.start("--interval", "0.2")
    eventually(lambda: shop.lines() == ["0", "2"], "all but one are handled", 30)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert shop.lines() == ["0", "2", "closed"]
    *lines, last = out.splitlines()
    assert last == "2 handled, 1 retried, 1 dead letters"
    assert all(re.match(r"\d+ handled \(\d+/s\), \d+ waiting", line) for line in lines)
    assert "\x1b" not in out + err
    assert "offset 1: its handler failed 2 times: ValueError: not to be taken" in err
    assert f"; it is in dead-letter topic {shop.dead} now" in err
    assert "INFO told by a handler" in err


def test_property_files_of_kafka_0_8_start_it_and_each_name_has_its_line(shop: Shop, tmp_path: Path) -> None:
    shop.make()
    (tmp_path / "consumer.properties").write_text(CONSUMER.replace("cassandra", shop.topic))
    (tmp_path / "producer.properties").write_text(PRODUCER)
    text = shop.file.read_text().replace(
        f'group.id = "group-{shop.topic}"', 'properties = "consumer.properties"'
    )
    shop.file.write_text(text + '\n[producer]\nproperties = "producer.properties"\n')
    produce(shop.bootstrap, {(shop.topic, 0): [b"a", b"poison"]})
    process = shop.start("--interval", "0.2")
    eventually(lambda: shop.lines() == ["0"], "one is handled", 30)
    assert process.stdout is not None
    while "1 dead letters" not in process.stdout.readline():
        pass
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    for line in (CONSUMER + PRODUCER).splitlines():
        name = line.partition("=")[0].strip()
        if name.startswith("#") or name in (
            "group.id",
            "auto.commit.interval.ms",
            "partition.assignment.strategy",
        ):
            continue  # as it was
        assert re.search(rf"^WARNING {re.escape(name)}=\S+ (is|has|gives)", err, re.MULTILINE), name


def test_programs_get_json(shop: Shop) -> None:
    shop.make()
    produce(shop.bootstrap, {(shop.topic, 0): [b"a", b"b"]})
    process = shop.start("--interval", "0.2", "--output", "json")
    eventually(lambda: shop.lines() == ["0", "1"], "both are handled", 30)
    process.terminate()
    out, _ = process.communicate(timeout=30)
    *_, last = [json.loads(line) for line in out.splitlines()]
    assert (last["handled"], last["dead_letters"], last["waiting"], last["final"]) == (2, 0, 0, True)


def test_a_terminal_has_one_line_of_progress(shop: Shop) -> None:
    shop.make()
    produce(shop.bootstrap, {(shop.topic, 0): [b"a"] * 10})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(shop.command(), stdout=theirs, stderr=theirs, stdin=theirs, text=True)
    shop.processes.append(process)
    os.close(theirs)
    shown = b""
    try:
        deadline = time.monotonic() + 30
        while b"10 handled (" not in shown and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 4096)
        process.terminate()
        assert process.wait(30) == 0
        shown += os.read(ours, 4096)
    finally:
        os.close(ours)
    assert b"\r\x1b[K10 handled (" in shown
    assert shown.endswith(b"10 handled, 0 retried, 0 dead letters\r\n")


def test_check_reads_the_file_and_asks_no_broker(shop: Shop) -> None:
    shop.declare('zookeeper.connect = "10.0.0.67:2181"')
    checked = shop.run("--check", "--bootstrap-server", "127.0.0.1:1")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines() == [
        f"{shop.topic}: 1 stream; retries of a failed record: 1, then to {shop.dead}",
        f"{shop.file} is valid",
    ]
    assert "WARNING zookeeper.connect=10.0.0.67:2181 has no meaning any more" in checked.stderr
    as_json = json.loads(shop.run("--check", "--output", "json").stdout)
    assert as_json["topics"] == {shop.topic: {"streams": 1, "dead_letter_topic": shop.dead}}


def test_a_setting_that_nobody_knows_warns_with_the_nearest(shop: Shop) -> None:
    shop.declare("max.pol.records = 5")
    checked = shop.run("--check")
    assert (
        "setting max.pol.records is not known and changes nothing; did you mean max.poll.records?"
        in checked.stderr
    )


def failed_line(done: subprocess.CompletedProcess[str], *, traced: bool = False) -> str:
    """The one line of a failure; `traced` where the traceback of a handler follows it."""
    assert done.returncode == 1, done.stderr
    assert ("Traceback" in done.stderr) == traced
    lines = [line for line in done.stderr.splitlines() if line.startswith("tidelog: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_handler_that_cannot_be_imported_is_told(shop: Shop) -> None:
    shop.declare(module="nowhere")
    for flags in (["--check"], []):
        assert failed_line(shop.run(*flags)) == (
            f"tidelog: topics.{shop.topic}.handler=nowhere:Handler: nowhere cannot be imported: "
            "ModuleNotFoundError: No module named 'nowhere'"
        )


ASYNC_HANDLERS = """\
import asyncio

class Handler:
    def __init__(self, stream):
        self.file = open(stream.options["file"], "a")

    async def on_message(self, record):
        await asyncio.sleep(0)
        self.file.write(f"{record.offset}\\n")
        self.file.flush()
"""


def test_check_and_run_agree_on_coroutine_functions(shop: Shop) -> None:
    shop.make()
    (shop.file.parent / "async_handlers.py").write_text(ASYNC_HANDLERS)
    shop.declare(module="async_handlers")
    produce(shop.bootstrap, {(shop.topic, 0): [b"a", b"b"]})
    assert shop.run("--check").returncode == 0
    process = shop.start()
    eventually(lambda: shop.lines() == ["0", "1"], "both are handled", 30)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_check_and_run_agree_on_generators(shop: Shop) -> None:
    shop.make()
    (shop.file.parent / "lazy_handlers.py").write_text(
        ASYNC_HANDLERS.replace("await asyncio.sleep(0)", "yield")
    )
    shop.declare(module="lazy_handlers")
    for flags in (["--check"], []):
        assert failed_line(shop.run(*flags)) == (
            f"tidelog: topics.{shop.topic}.handler: is an asynchronous generator function; "
            "expected a function, or a coroutine function, of a record"
        )


def test_an_unknown_topic_is_told(shop: Shop) -> None:
    assert failed_line(shop.run()) == f"tidelog: topic '{shop.topic}' does not exist at {shop.bootstrap}"


def test_an_unreachable_broker_is_told(shop: Shop) -> None:
    shop.declare("default.api.timeout.ms = 500")
    done = shop.run("--bootstrap-server", "127.0.0.1:1")
    assert "no broker can be reached at 127.0.0.1:1" in failed_line(done)


def test_a_file_that_is_not_there_is_told(shop: Shop) -> None:
    shop.file.unlink()
    assert failed_line(shop.run()) == f"tidelog: {shop.file}: cannot be read: No such file or directory"


def test_a_record_that_nobody_can_take_ends_it_with_one_line(shop: Shop) -> None:
    shop.make()
    shop.file.write_text(shop.file.read_text().replace("dead_letter_topic", "# dead_letter_topic"))
    produce(shop.bootstrap, {(shop.topic, 0): [b"a", b"poison", b"b"]})
    done = shop.run()
    line = failed_line(done, traced=True)
    number = 1 + HANDLERS.splitlines().index('            raise ValueError("not to be taken")')
    assert (
        f"{shop.topic}-0 offset 1: its handler failed 2 times: ValueError: not to be taken "
        f"(shop_handlers.py, line {number}); there is no dead"
    ) in line
    assert f'shop_handlers.py", line {number}, in on_message' in done.stderr
    assert shop.lines() == ["0", "closed"]


def test_ctrl_c_ends_a_start_that_waits_for_a_broker(shop: Shop) -> None:
    process = shop.start("--bootstrap-server", "127.0.0.1:1")
    assert process.stderr is not None
    assert "no broker can be reached" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
