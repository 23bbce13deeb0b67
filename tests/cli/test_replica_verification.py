"""`tidelog replica-verification` compares the batches of replicas and reports the largest lag."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from click.testing import CliRunner, Result

from tests.cli.client_tools import start
from tests.support.contents import produce
from tidelog.cli.main import main
from tidelog.cli.replica_comparison import BatchSum, FetchedReplica, ReplicaBuffer, batch_sums, lag_words
from tidelog.clients.admin import Admin, NewTopic
from tidelog.records.batch import Record, build_batch

NewName = Callable[[str], str]
PARTITION = ("t", 0)


def fetched(high_watermark: int, *batches: tuple[int, int]) -> FetchedReplica:
    return FetchedReplica(high_watermark, [BatchSum(*batch) for batch in batches])


def test_equal_replicas_move_on_to_the_end_of_the_last_batch_that_all_have() -> None:
    buffer = ReplicaBuffer(PARTITION, [1, 2], 0)
    assert buffer.compare({1: fetched(20, (9, 7), (19, 8)), 2: fetched(20, (9, 7))})
    assert (buffer.offset, buffer.lag, buffer.differences) == (10, 10, [])
    assert buffer.compare({1: fetched(20, (19, 8)), 2: fetched(20, (19, 8))})
    assert (buffer.offset, buffer.lag) == (20, 0)
    assert not buffer.compare({1: fetched(20), 2: fetched(20)})


def test_batches_above_a_high_watermark_are_not_compared() -> None:
    buffer = ReplicaBuffer(PARTITION, [1, 2], 0)
    assert not buffer.compare({1: fetched(10, (9, 7)), 2: fetched(9, (9, 6))})
    assert (buffer.offset, buffer.lag, buffer.differences) == (0, 10, [])


def test_a_replica_that_does_not_answer_is_behind() -> None:
    buffer = ReplicaBuffer(PARTITION, [1, 2], 5)
    assert not buffer.compare({1: fetched(10, (9, 7))})
    assert (buffer.offset, buffer.lag) == (5, 5)


def test_another_checksum_is_a_difference() -> None:
    buffer = ReplicaBuffer(PARTITION, [3, 1, 2], 0)
    assert buffer.compare({1: fetched(10, (9, 7)), 2: fetched(10, (9, 6)), 3: fetched(10, (9, 7))})
    assert buffer.take_differences() == [
        "partition t-0 has unmatched checksum at offset 9; replica 3's checksum 7; replica 2's checksum 6"
    ]
    assert (buffer.take_differences(), buffer.broken) == ([], False)


def test_batches_that_end_elsewhere_end_the_comparison() -> None:
    buffer = ReplicaBuffer(PARTITION, [1, 2], 0)
    assert not buffer.compare({1: fetched(20, (9, 7), (19, 1)), 2: fetched(20, (8, 7), (19, 2))})
    assert buffer.broken
    assert buffer.take_differences() == [
        "partition t-0: replica 1's offset 9 doesn't match replica 2's offset 8"
    ]


def test_the_first_batch_may_begin_before_the_offset() -> None:
    one = bytes(build_batch([Record(0, 1, None, b"a"), Record(1, 1, None, b"b")]))
    two = bytes(build_batch([Record(2, 1, None, b"c")], base_offset=2))
    assert [found.last_offset for found in batch_sums(one + two, 1)] == [1, 2]
    assert [found.last_offset for found in batch_sums(one + two, 2)] == [2]
    assert [found.last_offset for found in batch_sums(one + two[:-1], 0)] == [1]


def test_the_report_names_the_partition_that_is_most_behind() -> None:
    buffers = [ReplicaBuffer(("t", 0), [1], 5, 0), ReplicaBuffer(("t", 1), [1], 7, 3)]
    assert lag_words(buffers) == "max lag is 3 for partition t-1 at offset 7 among 2 partitions"


def verify(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replica-verification", "--bootstrap-server", bootstrap, *arguments])


def test_the_partitions_of_a_broker_are_compared(bootstrap: str, new_name: NewName) -> None:
    name = new_name("verified")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    produce(bootstrap, {(name, 0): [b"x"] * 10, (name, 1): [b"y"] * 3})
    done = verify(bootstrap, "--once", "--topics-include", name, "--max-wait-ms", "100")
    assert done.exit_code == 0, done.stderr
    started, report = (line.split(": ", 1) for line in done.stdout.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", started[0])
    assert started[1] == "verification process is started"
    assert report[1] == f"max lag is 0 for partition {name}-0 at offset 10 among 2 partitions"


def test_it_reports_until_it_is_stopped(bootstrap: str, new_name: NewName) -> None:
    name = new_name("watched")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    flags = ("--topics-include", name, "--report-interval-ms", "100", "--max-wait-ms", "50")
    process = start(bootstrap, "replica-verification", *flags)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert all("max lag is 0" in line for line in lines[1:])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()


def test_wrong_flags_and_topics_that_do_not_exist(bootstrap: str) -> None:
    for flags in (
        ("--topics-include", "no-such-topic"),
        ("--topics-include", "["),
        ("--broker-list", bootstrap),
        ("--fetch-size", "x"),
    ):
        done = verify(bootstrap, "--once", *flags)
        assert (done.exit_code, done.stdout) == (1, "")
