"""Produced batches get the answer that Kafka 4.3 gave.

The cases were sent to it and then built anew by the same code for the time in the data, so timestamps and
checksums are not the ones that it saw; everything else is.
"""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.records.build import NOW, raw_batch, raw_record, record, with_header
from tidelog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnknownServerError,
    error_name,
)
from tidelog.records.batch import CONTROL_FLAG, build_batch, crc_is_valid, read_header, read_records
from tidelog.records.check import MAX_RECORD_ERRORS, CheckedBatch, ProduceRules, check_produced
from tidelog.records.codecs import Codec, compress

DATA = Path(__file__).parents[1] / "data" / "produced-batches.json.gz"
SEEN = json.loads(gzip.decompress(DATA.read_bytes()))
CODEC_OF_TOPIC = {"zstd": Codec.ZSTD, "uncompressed": Codec.NONE}


def check(batch: bytes, now: int = NOW, **rules: Any) -> CheckedBatch:
    return check_produced(memoryview(bytearray(batch)), ProduceRules(**rules), now)


def rules_of(topic: dict[str, Any], version: int) -> ProduceRules:
    defaults = ProduceRules()
    return ProduceRules(
        max_message_bytes=topic.get("max.message.bytes", defaults.max_message_bytes),
        log_append_time=topic.get("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=topic.get(
            "message.timestamp.before.max.ms", defaults.timestamp_before_max_ms
        ),
        timestamp_after_max_ms=topic.get("message.timestamp.after.max.ms", defaults.timestamp_after_max_ms),
        compacted=topic.get("cleanup.policy") == "compact",
        target_codec=CODEC_OF_TOPIC.get(topic.get("compression.type", "producer")),
        allow_zstd=version >= 7,
    )


# Where we answer otherwise on purpose ("ours" in the data), it is for one of these reasons:
# - offset deltas out of order: Kafka stores them uncompressed, so that consumers see offsets twice or gaps,
#   and fails with UNKNOWN_SERVER_ERROR when they are compressed; we refuse both as INVALID_RECORD;
# - record sizes that are wrong inside of compressed data: Kafka stores what its own consumers cannot read;
# - lengths and varints that make Kafka stumble (UNKNOWN_SERVER_ERROR) instead of being seen as bad.
REASONS = ("delta", "size", "length exact")


@pytest.mark.parametrize("case", SEEN["cases"], ids=lambda case: case["case"])
def test_the_answer_is_kafkas(twin: SimpleNamespace, case: dict[str, Any]) -> None:
    rules = rules_of(case["topic"], case["version"])
    batch = bytes.fromhex(case["batch"])
    if "ours" in case:
        assert any(reason in case["case"] for reason in REASONS)
    answer = case.get("ours", case["kafka"])
    if answer != "NONE":
        with pytest.raises(KafkaError) as caught:
            check_produced(memoryview(bytearray(batch)), rules, SEEN["now"])
        assert error_name(caught.value.code) == answer
        if isinstance(caught.value, InvalidTimestamp):
            assert len(caught.value.record_errors) == case["record_errors"]
        return
    checked = check_produced(memoryview(bytearray(batch)), rules, SEEN["now"])
    header = read_header(checked.data)
    assert checked == CheckedBatch.of(checked.data)
    assert checked.size == header.total_size
    assert crc_is_valid(checked.data, 0, header)
    assert len(read_records(checked.data)) == header.record_count


def test_a_good_batch_is_passed_on_without_a_copy(twin: SimpleNamespace) -> None:
    view = memoryview(bytearray(build_batch([record(0), record(1, NOW + 9), record(2, NOW + 9), record(3)])))
    checked = check_produced(view, ProduceRules(), NOW)
    assert checked.data is view
    assert (checked.size, checked.last_offset_delta, checked.max_timestamp) == (len(view), 3, NOW + 9)


def test_bytes_after_the_batch_are_left_out_and_read_only_input_is_copied() -> None:
    batch = build_batch([record()])
    checked = check_produced(memoryview(batch + batch[:40]), ProduceRules(), NOW)
    assert checked.data == batch
    assert not checked.data.readonly


def test_append_time_is_stamped(twin: SimpleNamespace) -> None:
    for codec in Codec:
        checked = check(build_batch([record(0, 5), record(1, 2**62)], codec=codec), log_append_time=True)
        assert checked.max_timestamp == NOW
        assert read_header(checked.data).is_log_append_time
        assert {r.timestamp for r in read_records(checked.data)} == {NOW}
        assert crc_is_valid(checked.data, 0, read_header(checked.data))


def test_a_batch_that_was_stamped_can_be_checked_again(twin: SimpleNamespace) -> None:
    """The fast path may leave a request to the general one, which checks its bytes again."""
    rules = ProduceRules(log_append_time=True)
    data = bytearray(build_batch([record()]))
    first = check_produced(memoryview(data), rules, NOW + 1)
    again = check_produced(memoryview(data), rules, NOW + 2)
    assert [first.max_timestamp, again.max_timestamp] == [NOW + 1, NOW + 2]


def test_a_wrong_greatest_timestamp_is_put_right(twin: SimpleNamespace) -> None:
    for codec in (Codec.NONE, Codec.LZ4):
        wrong = with_header(build_batch([record(0), record(1, NOW + 7)], codec=codec), max_timestamp=3)
        checked = check(wrong)
        header = read_header(checked.data)
        assert header.max_timestamp == checked.max_timestamp == NOW + 7
        assert crc_is_valid(checked.data, 0, header)


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_a_topic_with_a_codec_stores_in_it(twin: SimpleNamespace, source: Codec, target: Codec) -> None:
    records = [record(i, NOW + i, b"k%d" % i, b"v" * 50) for i in range(100)]
    sent = build_batch(
        records, codec=source, producer_id=7, producer_epoch=2, base_sequence=11, transactional=True
    )
    checked = check(sent, target_codec=target)
    header = read_header(checked.data)
    assert read_records(checked.data) == records
    assert header.codec == target
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 11)
    assert crc_is_valid(checked.data, 0, header)
    if source is target:
        assert checked.data == sent


def test_the_size_limit_holds_before_and_after_compression() -> None:
    small = build_batch([record(0, value=bytes(5000))], codec=Codec.ZSTD)
    assert check(small, max_message_bytes=len(small)).data == small
    with pytest.raises(MessageTooLarge):
        check(small, max_message_bytes=len(small) - 1)
    with pytest.raises(MessageTooLarge):
        check(small, max_message_bytes=3000, target_codec=Codec.NONE)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_a_batch_unpacks_to_is_bounded(codec: Codec) -> None:
    batch = build_batch([record(0, value=bytes(900_000))], codec=codec)
    assert check(batch, max_unpacked=1_000_000).last_offset_delta == 0
    with pytest.raises(MessageTooLarge):
        check(batch, max_unpacked=800_000)
    with pytest.raises(UnknownServerError):
        check(raw_batch(compress(codec, raw_record())[:-3], 1, attributes=int(codec)))


def test_every_bad_record_is_named_up_to_a_bound(twin: SimpleNamespace) -> None:
    batch = build_batch([record(0, key=None), record(1), record(2, NOW + 10**10), record(3, NOW - 10**10)])
    with pytest.raises(InvalidTimestamp) as caught:
        check(batch, compacted=True, timestamp_before_max_ms=1000)
    assert [index for index, _ in caught.value.record_errors] == [0, 2, 3]
    with pytest.raises(InvalidRecord) as keys:
        check(build_batch([record(i, key=None) for i in range(5000)]), compacted=True)
    assert len(keys.value.record_errors) == MAX_RECORD_ERRORS


def test_timestamps_at_the_ends_of_their_range(twin: SimpleNamespace) -> None:
    ends = [record(0, -(2**63)), record(1, 2**63 - 1)]
    unbounded = {"timestamp_before_max_ms": 2**63 - 1, "timestamp_after_max_ms": 2**63 - 1}
    assert check(build_batch(ends), **unbounded).max_timestamp == 2**63 - 1
    with pytest.raises(InvalidTimestamp) as caught:
        check(build_batch(ends))
    assert len(caught.value.record_errors) == 2
    wrapped = raw_batch(raw_record(timestamp=2**63 - 1), 1, base_timestamp=2**62)
    assert check(wrapped).max_timestamp == -1  # the sum wraps below 0, as it does in Java


def test_the_brokers_own_batches_may_be_control_batches() -> None:
    control = build_batch([record(5)], base_offset=5, control=True, transactional=True, producer_id=1)
    assert check(control, from_client=False).attributes & CONTROL_FLAG
    with pytest.raises(InvalidRecord):
        check(control)
    with pytest.raises(CorruptMessage):
        check(control[:-1] + b"x", from_client=False)


def test_batches_are_checked_in_many_threads_at_once(twin: SimpleNamespace) -> None:
    batch = build_batch([record(i, value=b"v" * 500) for i in range(1000)])
    bad = raw_batch(batch[61:-1] + b"\1", 1000)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(check, batch) for _ in range(20)]
        refused = [pool.submit(check, bad) for _ in range(20)]
        assert all(future.result().last_offset_delta == 999 for future in good)
        assert all(isinstance(future.exception(), InvalidRecord) for future in refused)
