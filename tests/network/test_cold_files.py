"""A file range outside the page cache is brought in beside the loop: no other connection waits for it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.harness import Client, Running, serving
from tests.support.cold_disk import ColdDisk
from tests.support.wait import eventually
from tidelog.network.output import BROUGHT_IN_BYTES
from tidelog.network.request import Request
from tidelog.storage.file_slice import FileSlice

SIZES = {"large": 2 * BROUGHT_IN_BYTES + 1000, "small": 1000}


class Files:
    """A server whose answer to `large` and `small` is a file of that size, on a disk that can be cold."""

    def __init__(self, folder: Path) -> None:
        self.disk = ColdDisk()
        self.contents = {name: os.urandom(size) for name, size in SIZES.items()}
        self._slices: dict[str, FileSlice] = {}
        for name, content in self.contents.items():
            path = folder / name
            path.write_bytes(content)
            self._slices[name] = FileSlice(self.disk.open(str(path)), 0, len(content))

    def answer(self, request: Request) -> None:
        parts: list[bytes | FileSlice] = [struct.pack(">i", request.correlation_id)]
        name = bytes(request.buffer[request.body_start :]).decode()
        if name in self._slices:
            parts += [b"<", self._slices[name], b">"]
        request.respond(parts)

    def expected(self, name: str) -> bytes:
        return b"<" + self.contents[name] + b">"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def running(files: Files) -> Iterator[Running]:
    with serving(files.answer) as running:
        files.disk.evict()
        files.disk.may_read.clear()
        try:
            yield running
        finally:
            files.disk.may_read.set()


def ask_for_cold(running: Running, files: Files, name: str) -> Client:
    client = running.client()
    before = files.disk.waiting
    client.send(1, name.encode())
    eventually(lambda: files.disk.waiting > before, "the disk is read")
    return client


@pytest.mark.parametrize("name", SIZES)
def test_others_are_answered_while_the_disk_is_waited_for(running: Running, files: Files, name: str) -> None:
    reader = ask_for_cold(running, files, name)
    other = running.client()
    other.sock.settimeout(5)
    for n in range(20):
        assert other.ask(n) == (n, b"")
    files.disk.may_read.set()
    assert reader.receive() == (1, files.expected(name))


def test_answers_of_one_connection_stay_in_order(running: Running, files: Files) -> None:
    reader = ask_for_cold(running, files, "large")
    for n, name in ((2, "small"), (3, ""), (4, "large")):
        reader.send(n, name.encode())
    files.disk.may_read.set()
    assert reader.receive() == (1, files.expected("large"))
    assert reader.receive() == (2, files.expected("small"))
    assert reader.receive() == (3, b"")
    assert reader.receive() == (4, files.expected("large"))


def test_at_most_one_range_is_brought_in_at_a_time(running: Running, files: Files) -> None:
    reader = ask_for_cold(running, files, "large")
    assert [(size, position) for _, size, position in files.disk.brought_in] == [(BROUGHT_IN_BYTES, 0)]
    files.disk.may_read.set()
    assert reader.receive() == (1, files.expected("large"))
    assert [size for _, size, _ in files.disk.brought_in] == [BROUGHT_IN_BYTES, BROUGHT_IN_BYTES, 1000]


def test_a_file_that_is_evicted_again_at_once_is_sent_all_the_same(
    running: Running, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColdDisk, "is_cold", lambda *args: True)
    files.disk.may_read.set()
    assert running.client().ask(1, b"large") == (1, files.expected("large"))


def test_a_read_that_fails_closes_the_connection(running: Running, files: Files) -> None:
    reader = ask_for_cold(running, files, "large")
    files.disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    files.disk.may_read.set()
    with pytest.raises(ConnectionError):
        reader.receive()
    assert running.client().ask(2) == (2, b"")


def test_the_reads_of_a_client_that_went_away_are_dropped(running: Running, files: Files) -> None:
    # The harness has two reading threads: the third client's read waits behind the others.
    ask_for_cold(running, files, "large")
    ask_for_cold(running, files, "small")
    third = running.client()
    third.send(1, b"large")
    running.wait_until(lambda: sum(c.has_response_pending for c in running.server.channels.values()) == 3)
    asked = len(files.disk.brought_in)
    third.close()
    running.wait_until(lambda: len(running.server.channels) == 2, "the third connection is closed")
    files.disk.may_read.set()
    running.wait_until(lambda: not any(c.has_response_pending for c in running.server.channels.values()))
    assert sum(path.endswith("large") and position == 0 for path, _, position in files.disk.brought_in) == 1
    assert asked == 2
