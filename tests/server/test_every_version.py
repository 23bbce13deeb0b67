"""Every version of every API that is announced is answered, and answered in that version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.filled_requests import (
    BARE_ANSWERS,
    CASES,
    EMPTY,
    FilledRequests,
    empty_arrays,
    expected_errors,
)
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.wait import eventually
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.server.apis import served_apis

SERVED = [
    (api.key, version)
    for api in sorted(served_apis().values(), key=lambda api: api.key)
    for version in range(api.min_version, api.max_version + 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("versions")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with Broker(folder, settings) as running, RawConnection(running.address) as connection:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        connection.call(CreateTopicsRequest(topics=[topic]), 7)
        # The first request for it makes the topic of the groups' offsets.
        find = FindCoordinatorRequest(key="g")
        eventually(lambda: not error_codes_of(connection, find, 3), "a coordinator of groups")
        assert error_codes_of(connection, FilledRequests(connection).of(8, 9), 9) == []
        yield running


def error_codes_of(connection: RawConnection, request: Message, version: int) -> list[int]:
    return [code for code in error_codes(connection.call(request, version)) if code]


def error_codes(value: object) -> Iterator[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list):
        for item in value:
            yield from error_codes(item)
    elif hasattr(value, "FIELDS"):
        for field in value.FIELDS:
            inner = getattr(value, field.name)
            if field.name in ("error_code", "partition_error_code"):
                yield inner
            else:
                yield from error_codes(inner)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=lambda value: str(value))
def test_a_served_version_is_answered_without_an_error(broker: Broker, key: int, version: int) -> None:
    with RawConnection(broker.address) as connection:
        request = FilledRequests(connection).of(key, version)
        assert {(key, path) for path in empty_arrays(request, version)} <= EMPTY.keys()
        try:
            answer = connection.call(request, version)
        except ConnectionClosed:
            last = broker.log().rstrip()[-300:]  # the end of a traceback
            pytest.fail(
                f"{API[key].name} v{version} closed the connection. A response field that this version lacks "
                f"has to be ignorable in protocol/messages if it is always filled. The log ends: {last}"
            )
        assert [code for code in error_codes(answer) if code] == expected_errors(key, version)
        assert key in BARE_ANSWERS or answer != API[key].response(), "the answer says nothing"


def test_every_api_has_a_filled_request() -> None:
    assert CASES.keys() == {ApiKey(key) for key in served_apis()}, "see tests/server/filled_requests.py"


@pytest.mark.parametrize("key", sorted(served_apis()))
def test_a_version_that_is_not_served_closes_the_connection(broker: Broker, key: int) -> None:
    api = served_apis()[key]
    if key == 18:
        return  # answered, so that a newer client learns what it may ask: tested below
    with RawConnection(broker.address) as connection:
        connection.send_frame(key.to_bytes(2, "big") + (api.max_version + 1).to_bytes(2, "big") + bytes(12))
        with pytest.raises(ConnectionClosed):
            connection.receive_frame()


def test_an_api_versions_that_is_too_new_is_answered_in_the_oldest_version(broker: Broker) -> None:
    with RawConnection(broker.address) as connection:
        connection.send_frame((18).to_bytes(2, "big") + (99).to_bytes(2, "big") + b"\0\0\0\x07\xff\xff\0")
        frame = connection.receive_frame()
    assert frame[:4] == b"\0\0\0\x07"
    assert frame[4:] == b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x04"
