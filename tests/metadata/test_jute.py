"""ZooKeeper's records: malformed answers are refused, whatever they claim."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata.simulated import requests
from tidelog.metadata.tree import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoNode,
    Operation,
    Result,
    SetData,
    Stat,
    TreeError,
    TreeUnavailable,
)
from tidelog.metadata.zookeeper import ConnectString, jute, open_acl, secure_acl
from tidelog.metadata.zookeeper.acl import OPEN

STAT = Stat(1, 2, 3, 4, 5, 6, 7, 8)
OPERATIONS: list[Operation] = [Create("/a"), SetData("/b", b"x"), Delete("/c"), Check("/d", 1)]
RESULTS: list[Result] = ["/a", STAT, None, None]
NAMES = st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


def body(frame: bytes) -> bytes:
    return frame[4:]


def test_answers_are_read_as_they_were_written() -> None:
    assert jute.read_header(body(requests.reply(7, 9, -101))) == (7, 9, -101)
    assert jute.read_data_and_stat(body(requests.reply(1, 1, 0, requests.data_body(b"x", STAT)))) == (
        b"x",
        STAT,
    )
    assert jute.read_children(body(requests.reply(1, 1, 0, requests.children_body(["b", "a"])))) == ["a", "b"]
    multi = body(requests.reply(1, 1, 0, requests.multi_body(OPERATIONS, RESULTS)))
    assert jute.read_multi(multi, OPERATIONS) == RESULTS
    assert jute.read_notification(body(requests.notification(EventType.DELETED, "/ä"))) == (
        EventType.DELETED,
        "/ä",
    )
    response = body(requests.connect_response(6000, 5, b"p" * 16))
    assert jute.read_connect_response(response) == (6000, 5, b"p" * 16)


def test_null_data_is_empty() -> None:
    frame = body(requests.reply(1, 1, 0, struct.pack(">i", -1) + requests.stat_body(STAT)))
    assert jute.read_data_and_stat(frame) == (b"", STAT)


@pytest.mark.parametrize(("failed", "code", "error"), [(0, -101, NoNode), (3, -103, BadVersion)])
def test_a_failed_multi_raises_the_error_of_its_operation(
    failed: int, code: int, error: type[TreeError]
) -> None:
    frame = body(requests.reply(1, 1, 0, requests.failed_multi_body(4, failed, code)))
    with pytest.raises(error) as raised:
        jute.read_multi(frame, OPERATIONS)
    assert raised.value.path == OPERATIONS[failed].path


def test_an_unknown_error_code_is_named() -> None:
    assert str(jute.error_of(-126, "/a")) == "/a: ZooKeeper failed with code -126"
    assert isinstance(jute.error_of(-126, "/a"), TreeUnavailable)


@given(NAMES, st.binary(), st.booleans(), st.booleans(), st.integers(-1, 1000))
def test_a_server_reads_the_requests_that_were_written(
    name: str, data: bytes, ephemeral: bool, sequential: bool, version: int
) -> None:
    path = f"/{name}"
    operations: list[Operation] = [
        Create(path, data, ephemeral, sequential),
        SetData(path, data, version),
        Delete(path, version),
        Check(path, version),
    ]
    for operation in operations:
        reader = requests.Reader(jute.operation_request(operation, path, OPEN))
        assert reader.operation(reader.integer()) == operation
    reader = requests.Reader(jute.multi_request([(each, path, OPEN) for each in operations]))
    reader.integer()
    assert reader.operations() == operations


READERS = [
    jute.read_connect_response,
    jute.read_header,
    jute.read_notification,
    jute.read_data_and_stat,
    jute.read_stat,
    jute.read_path,
    jute.read_children,
    lambda frame: jute.read_multi(frame, OPERATIONS),
]


@given(st.binary(max_size=200), st.sampled_from(READERS))
def test_any_bytes_are_read_or_refused(frame: bytes, read: object) -> None:
    assert callable(read)
    try:
        read(frame)
    except (jute.JuteError, UnicodeDecodeError, TreeError):
        pass


def test_an_answer_that_is_cut_off_is_refused_at_every_byte() -> None:
    multi = body(requests.reply(1, 1, 0, requests.multi_body(OPERATIONS, RESULTS)))
    for size in range(len(multi) - 9):
        with pytest.raises(jute.JuteError):
            jute.read_multi(multi[:size], OPERATIONS)


@pytest.mark.parametrize(
    ("text", "addresses", "chroot"),
    [
        ("h", (("h", 2181),), ""),
        ("h:1", (("h", 1),), ""),
        (" h:1 , i:2/a/b ", (("h", 1), ("i", 2)), "/a/b"),
        ("h:1,i/", (("h", 1), ("i", 2181)), ""),
        ("[::1]:7,[fe80::1]/c", (("::1", 7), ("fe80::1", 2181)), "/c"),
    ],
)
def test_connect_strings(text: str, addresses: tuple[tuple[str, int], ...], chroot: str) -> None:
    parsed = ConnectString.parse(text)
    assert parsed == (addresses, chroot)
    assert ConnectString.parse(parsed.hosts + chroot) == parsed


@pytest.mark.parametrize("text", ["", "/a", "h:x", "h:0", "h:70000", ":1", "h:1//a"])
def test_malformed_connect_strings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has to look like|names no ZooKeeper"):
        ConnectString.parse(text)


def test_acls_are_those_of_kafka() -> None:
    assert [tuple(acl) for acl in open_acl("/config/users/a")] == [(31, "world", "anyone")]
    assert [tuple(acl) for acl in secure_acl("/brokers/topics/t")] == [
        (31, "auth", ""),
        (1, "world", "anyone"),
    ]
    for path in ("/config/users/a", "/config/brokers/1", "/delegation_token/tokens/t"):
        assert [tuple(acl) for acl in secure_acl(path)] == [(31, "auth", "")]
    assert secure_acl("/consumers") == OPEN
