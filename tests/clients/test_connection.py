"""One connection: versions are agreed upon, answers belong to their requests, and every wait ends."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.clients.peers import Peer, correlation_id_of, frame, hang_up, raw, silence, versions
from tidelog.clients.connection import Connection, request_frame, split_address
from tidelog.errors import InvalidRequest, NetworkException, RequestTimedOut, UnsupportedVersion
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

METADATA = 3
ANSWER = MetadataResponse(cluster_id="c", controller_id=1)


def metadata_answer(version: int) -> bytes:
    tags = b"\x00" if version >= 9 else b""
    return tags + ANSWER.encode(version)


def connect(peer: Peer) -> Connection:
    return Connection(peer.host, peer.port, connect_timeout=5, request_timeout=5)


def test_the_newest_version_that_both_sides_speak_is_used() -> None:
    answers = [versions({METADATA: (0, 9)}), lambda r: frame(correlation_id_of(r), metadata_answer(9))]
    with Peer(answers) as peer, connect(peer) as connection:
        assert connection.call(MetadataRequest(topics=None), MetadataResponse).cluster_id == "c"
        assert struct.unpack_from(">hh", peer.requests[1]) == (METADATA, 9)


def test_a_version_above_ours_is_not_used() -> None:
    with Peer([versions({METADATA: (0, 99)})]) as peer, connect(peer) as connection:
        assert connection.version_for(MetadataRequest) == MetadataRequest.VERSIONS.high


def test_a_range_without_a_common_version_is_refused_with_both_ranges() -> None:
    refused = pytest.raises(UnsupportedVersion, match="versions 90 to 99, we speak 0 to 13")
    with Peer([versions({METADATA: (90, 99)})]) as peer, connect(peer) as connection, refused:
        connection.version_for(MetadataRequest)


def test_an_api_that_the_broker_does_not_serve_is_named() -> None:
    with Peer([versions({18: (0, 4)})]) as peer, connect(peer) as connection:
        assert not connection.serves(MetadataRequest)
        with pytest.raises(UnsupportedVersion, match="does not serve Metadata"):
            connection.call(MetadataRequest(), MetadataResponse)


def test_an_old_broker_is_asked_again_in_version_0() -> None:
    refused = versions({}, version=0, error_code=UnsupportedVersion.code)
    with Peer([refused, versions({METADATA: (0, 5)}, version=0)]) as peer, connect(peer) as connection:
        assert connection.versions == {METADATA: (0, 5)}
        assert [struct.unpack_from(">hh", request) for request in peer.requests] == [(18, 4), (18, 0)]


def test_an_error_instead_of_versions_is_raised_as_its_class() -> None:
    with Peer([versions({}, error_code=InvalidRequest.code)]) as peer, pytest.raises(InvalidRequest):
        connect(peer)


def test_a_broker_that_does_not_answer_is_given_up_in_time() -> None:
    with Peer([versions({METADATA: (0, 9)}), silence]) as peer, connect(peer) as connection:
        with pytest.raises(RequestTimedOut, match="Metadata: no answer"):
            connection.call(MetadataRequest(), MetadataResponse, timeout=0.05)
        # What comes later must not be taken for the answer to another request.
        with pytest.raises(NetworkException):
            connection.call(MetadataRequest(), MetadataResponse, timeout=0.05)


def test_a_broker_that_stops_within_an_answer_is_given_up_in_time() -> None:
    half = raw(struct.pack(">ii", 100, 2) + b"half")
    refused = pytest.raises(RequestTimedOut, match="Metadata: no answer")
    with Peer([versions({METADATA: (0, 9)}), half]) as peer, connect(peer) as connection, refused:
        connection.call(MetadataRequest(), MetadataResponse, timeout=0.05)


def test_a_broker_that_hangs_up_is_named() -> None:
    refused = pytest.raises(NetworkException, match=r"127.0.0.1:\d+ failed: the broker closed it")
    with Peer([versions({METADATA: (0, 9)}), hang_up]) as peer, connect(peer) as connection, refused:
        connection.call(MetadataRequest(), MetadataResponse)


@pytest.mark.parametrize("length", [-1, 0, 3, 0x7FFFFFFF, struct.unpack(">i", b"HTTP")[0]])
def test_a_length_that_no_broker_sends_is_refused_without_reading_on(length: int) -> None:
    with (
        Peer([raw(struct.pack(">i", length) + b"x" * 64)]) as peer,
        pytest.raises(NetworkException, match="no Kafka"),
    ):
        connect(peer)


def test_the_answer_to_another_request_is_refused() -> None:
    answers = [versions({METADATA: (0, 9)}), lambda r: frame(correlation_id_of(r) + 1, metadata_answer(9))]
    refused = pytest.raises(NetworkException, match="answer 3 came where 2 was due")
    with Peer(answers) as peer, connect(peer) as connection, refused:
        connection.call(MetadataRequest(), MetadataResponse)


def test_tagged_fields_in_the_header_of_an_answer_are_passed_over() -> None:
    body = b"\x02\x05\x03abc\x07\x00" + ANSWER.encode(9)
    answers = [versions({METADATA: (0, 9)}), lambda r: frame(correlation_id_of(r), body)]
    with Peer(answers) as peer, connect(peer) as connection:
        assert connection.call(MetadataRequest(), MetadataResponse).controller_id == 1


def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    def named(cluster: str) -> Callable[[bytes], bytes]:
        body = b"\x00" + MetadataResponse(cluster_id=cluster, controller_id=1).encode(9)
        return lambda request: frame(correlation_id_of(request), body)

    with Peer([versions({METADATA: (0, 9)}), named("a"), named("b")]) as peer, connect(peer) as connection:
        connection.send(MetadataRequest(), 9)
        connection.send(MetadataRequest(), 9)
        found = [MetadataResponse.decode(connection.receive(), 9).cluster_id for _ in range(2)]
        assert found == ["a", "b"]


def test_an_answer_may_wait_longer_for_its_reader_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [versions({METADATA: (0, 9)}), lambda r: frame(correlation_id_of(r), metadata_answer(9))]
    with Peer(answers) as peer, connect(peer) as connection:
        connection.send(MetadataRequest(), 9)
        later = time.monotonic() + 3600
        monkeypatch.setattr("tidelog.clients.connection.time", SimpleNamespace(monotonic=lambda: later))
        assert MetadataResponse.decode(connection.receive(), 9).cluster_id == "c"


def test_an_answer_that_is_none_is_named() -> None:
    answers = [versions({METADATA: (0, 9)}), lambda r: frame(correlation_id_of(r), b"\x00" + b"\xff" * 7)]
    refused = pytest.raises(NetworkException, match=r"Metadata: 127.0.0.1:\d+ answered: ")
    with Peer(answers) as peer, connect(peer) as connection, refused:
        connection.call(MetadataRequest(), MetadataResponse)


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with Peer([]) as peer:
        host, port = peer.host, peer.port
    with pytest.raises(NetworkException, match=f"cannot connect to {host}:{port}"):
        Connection(host, port)


def test_a_request_without_client_id_says_null() -> None:
    frame_bytes = request_frame(MetadataRequest(topics=None), 1, 7, None)
    assert frame_bytes == struct.pack(">ihhih", 14, METADATA, 1, 7, -1) + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("[::1]:9092", ("::1", 9092)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "localhost", ":9092", "localhost:", "localhost:0", "localhost:65536", "a:b"]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split_address(text)
