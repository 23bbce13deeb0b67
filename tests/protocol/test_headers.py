"""Headers of requests and responses: which form an API and version has, and that the fast readers agree."""

from __future__ import annotations

import pytest

from tests.protocol.golden import samples
from tidelog.protocol import ProtocolError
from tidelog.protocol.api import API, ApiInfo, ApiKey
from tidelog.protocol.headers import (
    RequestHeader,
    parse_request_header,
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from tidelog.protocol.messages import header


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 200])
@pytest.mark.parametrize("info", API.values(), ids=lambda info: info.name)
def test_a_request_header_is_read_as_it_was_written(info: ApiInfo, client_id: str | None) -> None:
    for version in range(info.min_version, info.max_version + 1):
        wire = request_header(info.key, version, 77, client_id)
        if info.key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            assert read_request_header(wire) == (info.key, version, 77, None, 8)
            continue
        assert read_request_header(wire + b"body") == (info.key, version, 77, client_id, len(wire))
        declared = header.RequestHeader(
            request_api_key=info.key, request_api_version=version, correlation_id=77, client_id=client_id
        )
        assert wire == declared.encode(2 if info.is_flexible(version) else 1)


def test_a_header_is_read_in_the_middle_of_a_buffer() -> None:
    wire = request_header(0, 9, 5, "c")
    assert read_request_header(memoryview(b"....." + wire), 5) == (0, 9, 5, "c", 5 + len(wire))
    assert parse_request_header(b"....." + wire, 5) == RequestHeader(0, 9, 5, "c", len(wire))


def test_kafkas_own_headers_are_read() -> None:
    for sample in samples():
        if sample.name == "RequestHeader" and sample.version == 1:
            read = read_request_header(sample.wire)
            assert read[:4] == tuple(sample.values.values())
            assert read[4] == len(sample.wire)


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    plain = request_header(0, 9, 1, "c")
    assert plain.endswith(b"\0")
    tagged = plain[:-1] + b"\x02\x00\x03abc\x05\x00"
    assert read_request_header(tagged + b"body") == (0, 9, 1, "c", len(tagged))
    answer = response_header(0, 9, 4)[:-1] + b"\x01\x07\x01x"
    assert read_response_header(0, 9, answer + b"body") == (4, len(answer))


@pytest.mark.parametrize(
    "wire", [b"", b"\0" * 7, b"\0" * 9, request_header(0, 9, 1, "abc")[:-1], b"\0" * 8 + b"\x7f\xff"]
)
def test_a_header_cut_short_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError, match="header"):
        read_request_header(wire)


def test_a_tagged_field_beyond_the_header_is_refused() -> None:
    with pytest.raises(ProtocolError, match="tagged field"):
        read_request_header(request_header(0, 9, 1, "c")[:-1] + b"\x01\x00\xff\xff\xff\xff\x07")
    with pytest.raises(ProtocolError, match="cut short"):
        read_response_header(0, 9, b"\0\0\0\1")
    with pytest.raises(ProtocolError, match="cut short"):
        read_response_header(0, 3, b"\0\0\0")


def test_an_unknown_api_can_still_be_named() -> None:
    assert read_request_header(request_header(999, 3, 1, "c"))[:2] == (999, 3)


def test_an_api_versions_response_has_the_oldest_header_because_nothing_is_agreed_yet() -> None:
    for version in range(5):
        assert response_header(ApiKey.API_VERSIONS, version, 9) == b"\0\0\0\x09"
    assert response_header(ApiKey.METADATA, 8, 9) == b"\0\0\0\x09"
    assert response_header(ApiKey.METADATA, 9, 9) == b"\0\0\0\x09\0"
    assert read_response_header(ApiKey.API_VERSIONS, 4, b"\0\0\0\x09") == (9, 4)
