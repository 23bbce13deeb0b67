"""Headers of known requests, and the counting of their times: the compiled and the plain twin do the same."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tests.support.scale import scale
from tidelog.metrics.registry import BUCKETS, bucket_of
from tidelog.network import _pure
from tidelog.protocol.headers import request_header

_speed = pytest.importorskip("tidelog.network._speed")
TWINS = (_pure, _speed)
PLAIN, FLEXIBLE = SimpleNamespace(flexible=False), SimpleNamespace(flexible=True)
ENTRIES = {0 << 16 | 8: PLAIN, 0 << 16 | 9: FLEXIBLE}
CLIENT = b"\0\4test"


def framed(version: int, body: bytes, client: str | None = "test", correlation_id: int = -7) -> bytearray:
    message = request_header(0, version, correlation_id, client) + body
    return bytearray(struct.pack(">i", len(message)) + message)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_known_header_is_found_and_nothing_else_is(twin: ModuleType) -> None:
    for version, entry, body_start in ((8, PLAIN, 14), (9, FLEXIBLE, 15)):
        for body in (b"", b"body"):
            frame = framed(version, body)
            buffer = bytearray(b"before") + frame + b"behind"
            end = 6 + len(frame)
            assert twin.known_header(buffer, 6, end, ENTRIES, CLIENT) == (entry, -7, body_start)
            assert bytes(frame[4 + body_start :]) == body
            assert twin.known_header(buffer, 6, end, ENTRIES, b"\0\4best") is None
            assert twin.known_header(buffer, 6, end, ENTRIES, b"") is None
            assert twin.known_header(buffer, 6, end, {}, CLIENT) is None
            assert twin.known_header(buffer, 6, end + 1, ENTRIES, CLIENT) is None
            assert twin.known_header(buffer, 6, len(buffer) + 1, ENTRIES, CLIENT) is None
            for cut in range(6, end):
                assert twin.known_header(buffer, 6, cut, ENTRIES, CLIENT) is None
    tagged = framed(9, b"")
    tagged[-1] = 1
    assert twin.known_header(tagged, 0, len(tagged), ENTRIES, CLIENT) is None
    nobody = framed(8, b"\xff\xff\xff", client=None)
    assert twin.known_header(nobody, 0, len(nobody), ENTRIES, b"\xff\xff") == (PLAIN, -7, 10)


def test_twins_agree_on_mutated_frames() -> None:
    rng = random.Random(11)
    for _ in range(scale(3000, 100_000)):
        frame = framed(rng.choice((8, 9)), rng.randbytes(rng.randrange(4)))
        for _ in range(rng.randrange(3)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        start, end = rng.choice((0, 0, 1, -1)), len(frame) + rng.choice((0, 0, 0, -1, 1))
        found = [twin.known_header(frame, start, end, ENTRIES, CLIENT) for twin in TWINS]
        assert found[0] == found[1]


def test_twins_count_the_same() -> None:
    rng = random.Random(12)
    counted = [[[0] * BUCKETS for _ in range(5)] for _ in TWINS]
    times = [twin.RequestTimes(*buckets) for twin, buckets in zip(TWINS, counted, strict=True)]
    for _ in range(scale(3000, 30_000)):
        marks = [rng.randrange(1 << rng.randrange(1, 45)) for _ in range(5)]
        size = rng.randrange(1 << rng.randrange(1, 31))
        for one in times:
            one.record(size, *sorted(marks))
    assert counted[0] == counted[1]
    assert sum(counted[0][3]) == sum(counted[0][0])
    one = [[0] * BUCKETS for _ in range(5)]
    _speed.RequestTimes(*one).record(100, 0, 0, 5_000_000, 5_000_000, 9_000_000)
    assert [buckets.index(1) for buckets in one[:4]] == [
        bucket_of(9_000_000 >> 10),
        bucket_of(5_000_000 >> 10),
        bucket_of(4_000_000 >> 10),
        bucket_of(100),
    ]
    assert not any(one[4])


@pytest.mark.parametrize(("wanted", "used"), [("1", "_pure"), ("0", "_speed")])
def test_plain_python_is_used_where_it_is_asked_for(wanted: str, used: str) -> None:
    code = "from tidelog.network.twins import RequestTimes; print(RequestTimes.__module__)"
    environment = {**os.environ, "TIDELOG_PURE": wanted}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert told.stdout.decode().strip() == f"tidelog.network.{used}"


def test_other_numbers_of_buckets_are_refused() -> None:
    for twin in TWINS:
        with pytest.raises(ValueError, match="buckets"):
            twin.RequestTimes([], [], [], [], [])
