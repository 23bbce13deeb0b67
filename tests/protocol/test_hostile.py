"""Bytes that are no message are refused with a ProtocolError, early, and without costing memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.golden import Sample, samples
from tests.support.scale import scale
from tidelog.protocol import Message, ProtocolError, decode
from tidelog.protocol.headers import read_request_header, read_response_header
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.wire import read_uvarint, write_uvarint


def full_samples() -> list[Sample]:
    """The larger of the two samples of each message in each version, where it takes any bytes."""
    best: dict[tuple[str, int], Sample] = {}
    for sample in samples():
        key = (sample.name, sample.version)
        best[key] = max(best.get(key, sample), sample, key=lambda each: len(each.wire))
    return [sample for sample in best.values() if sample.wire]


def test_a_message_cut_short_anywhere_is_refused() -> None:
    for sample in full_samples():
        for length in range(0, len(sample.wire), max(1, len(sample.wire) // scale(15, 10_000))):
            with pytest.raises(ProtocolError, match=sample.name):
                sample.cls.decode(sample.wire[:length], sample.version)


def test_bytes_behind_a_message_are_refused() -> None:
    for sample in full_samples():
        with pytest.raises(ProtocolError, match="1 bytes follow the message"):
            sample.cls.decode(sample.wire + b"\0", sample.version)


def test_damaged_messages_are_read_or_refused_and_never_break_the_reader() -> None:
    random = Random(7)
    refused = 0
    for sample in full_samples():
        for _ in range(scale(8, 2_000)):
            damaged = bytearray(sample.wire)
            for _ in range(random.choice((1, 1, 2, 5))):
                byte = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
                damaged[random.randrange(len(damaged))] = byte
            try:
                decode(sample.cls, sample.version, damaged)
            except ProtocolError:
                refused += 1
    assert refused


@settings(derandomize=True, max_examples=scale(200, 5_000), deadline=None)
@given(data=st.binary(max_size=200), index=st.integers(0, 10_000))
def test_garbage_is_read_or_refused(data: bytes, index: int) -> None:
    chosen = samples()[index % len(samples())]
    try:
        decode(chosen.cls, chosen.version, data)
    except ProtocolError:
        pass
    for read in (read_request_header, lambda buf: read_response_header(0, 9, buf)):
        try:
            read(data)
        except ProtocolError:
            pass


@pytest.mark.parametrize("count", [1_000, 0x7FFFFFFF])
def test_a_count_beyond_the_bytes_is_refused_before_anything_is_made_for_it(count: int) -> None:
    compact = write_uvarint(min(count + 1, 0x7FFFFFFF))
    cases: list[tuple[type[Message], int, bytes]] = [
        (MetadataRequest, 1, count.to_bytes(4, "big")),
        (MetadataRequest, 9, compact),
        (MetadataResponse, 9, bytes(4) + compact),
        (ProduceRequest, 9, b"\0" + bytes(6) + compact),
        (ProduceRequest, 9, b"\0" + bytes(6) + b"\x02\x02x\x02" + bytes(4) + compact),
        (FetchRequest, 12, bytes(25) + compact),
        (ApiVersionsRequest, 3, compact),
        (ApiVersionsRequest, 3, b"\x02a\x02b\x01\x09" + compact),
    ]
    for cls, version, wire in cases:
        try:
            decode(cls, version, b"")  # the reader itself is generated outside the measurement
        except ProtocolError:
            pass
        tracemalloc.start()
        with pytest.raises(ProtocolError):
            decode(cls, version, wire + b"\0" * 20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 50_000


def test_a_negative_length_is_null_where_null_is_allowed_and_refused_elsewhere() -> None:
    assert MetadataRequest.decode(b"\xff\xff\xff\xff", 1).topics is None
    with pytest.raises(ProtocolError, match="topics is null"):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0)
    assert MetadataRequest.decode(b"\0\0\0\0\0", 9).topics is None
    with pytest.raises(ProtocolError, match="client_software_name is null"):
        ApiVersionsRequest.decode(b"\0\x01\0", 3)


def test_a_variable_length_number_has_five_bytes_at_most() -> None:
    assert read_uvarint(b"\xff\xff\xff\xff\x07", 0) == (0x7FFFFFFF, 5)
    for endless in (b"\x80" * 5 + b"\x01", b"\xff" * 30, b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(ProtocolError, match="variable-length number"):
            read_uvarint(endless, 0)


def test_a_string_is_limited_as_in_kafka_even_where_the_encoding_could_hold_more() -> None:
    longest = ApiVersionsRequest(client_software_name="x" * 0x7FFF, client_software_version="1")
    assert ApiVersionsRequest.decode(longest.encode(3), 3) == longest
    with pytest.raises(ProtocolError, match="32768 bytes long"):
        ApiVersionsRequest(client_software_name="x" * 0x8000).encode(3)
    with pytest.raises(ProtocolError, match="32768 bytes long"):
        ApiVersionsRequest.decode(write_uvarint(0x8001) + b"x" * 0x8000 + b"\x01\0", 3)


def test_text_that_is_no_utf8_is_replaced_as_kafka_does() -> None:
    request = ApiVersionsRequest.decode(b"\x05caf\xe9\x02a\0", 3)
    assert request.client_software_name == "caf�"


def test_a_tagged_field_that_does_not_fill_its_size_is_refused() -> None:
    body = FetchRequest(cluster_id="abc").encode(12)
    assert FetchRequest.decode(body, 12).cluster_id == "abc"
    padded = body.replace(b"\x01\x00\x04\x04abc", b"\x01\x00\x05\x04abcd")
    assert padded != body
    with pytest.raises(ProtocolError, match="cluster_id does not fill"):
        FetchRequest.decode(padded, 12)
