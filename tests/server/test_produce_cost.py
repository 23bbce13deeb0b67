"""Idempotent and transactional batches are appended with about as many calls as plain ones.

Calls are counted, since times would depend on the machine.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cluster.world import World
from tests.storage.helpers import batch
from tidelog.network.request import FastRequest
from tidelog.records import loops
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.server.apis.produce import transactional_key
from tidelog.server.apis.small_produce import SmallProduces
from tidelog.server.audit import AuditLog
from tidelog.server.quota.quota_managers import QuotaManagers
from tidelog.server.services import Services

PRODUCER = 4711


class FakeChannel:
    """Takes the answer to a request of one batch for partition 0 of topic `t`."""

    has_other_requests = False

    def __init__(self, generation: int = 0) -> None:
        self.answer = b""
        self.allowed_writes = {"t": generation, transactional_key("id"): generation}

    def send_now(self, taken: FastRequest, frame: bytes) -> None:
        self.answer = frame

    def error_code(self) -> int:
        code: int = struct.unpack_from(">h", self.answer, 17)[0]
        return code


def body(data: bytearray, transactional_id: bytes | None) -> memoryview:
    name = b"\0" if transactional_id is None else bytes([len(transactional_id) + 1]) + transactional_id
    head = name + struct.pack(">hi", -1, 1000) + b"\x02\x02t\x02" + struct.pack(">i", 0)
    size = len(data) + 1
    varint = bytes([size & 0x7F | 0x80, size >> 7])
    return memoryview(bytearray(head + varint + data + b"\0\0\0"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.partition("t")
    yield made
    made.close()


def services(world: World, authorizer: AclAuthorizer | None = None) -> Services:
    made = SimpleNamespace(
        replicas=world.replicas,
        clock=world.scheduler.clock,
        quotas=QuotaManagers(world.scheduler.clock),
        verification=SimpleNamespace(is_verified_now=lambda *_: True),
        authorizer=authorizer,
        audit=AuditLog(),
    )
    return cast("Services", made)


def calls_of_one(
    world: World,
    *,
    idempotent: bool = False,
    transactional: bool = False,
    authorizer: AclAuthorizer | None = None,
) -> int:
    """The calls, of Python and of C functions, that the tenth of ten requests takes."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    produces, value = SmallProduces(services(world, authorizer)), b"v" * 100
    generation = 0 if authorizer is None else authorizer.generation
    entry = SimpleNamespace(api_version=9)
    for sequence in range(10):
        producer = (PRODUCER + transactional, 0, sequence) if idempotent or transactional else None
        data = batch(
            producer=producer, transactional=transactional, value=value, timestamp=world.scheduler.clock.ms()
        )
        frame, channel = body(data, b"id" if transactional else None), FakeChannel(generation)
        request = cast("FastRequest", (channel, entry, 1, len(frame), 0, 0))
        count = 0
        sys.setprofile(counted)
        try:
            taken = produces.take(request, frame, 0)
        finally:
            sys.setprofile(None)
        assert taken
        assert channel.error_code() == 0
    return count


@pytest.mark.skipif(not loops.COMPILED, reason="the interpreted twins make calls of their own")
def test_idempotent_and_transactional_batches_take_few_calls_more_than_plain_ones(world: World) -> None:
    plain = calls_of_one(world)
    assert calls_of_one(world, idempotent=True) <= plain + 4
    assert calls_of_one(world, transactional=True) <= plain + 9
    assert plain <= 45


@pytest.mark.skipif(not loops.COMPILED, reason="the interpreted twins make calls of their own")
def test_a_remembered_decision_takes_few_calls(world: World) -> None:
    plain = calls_of_one(world)
    assert calls_of_one(world, authorizer=AclAuthorizer()) <= plain + 1


def test_a_produce_without_a_remembered_decision_is_left_to_the_handler_that_asks(world: World) -> None:
    authorizer = AclAuthorizer()
    produces = SmallProduces(services(world, authorizer))
    entry = SimpleNamespace(api_version=9)
    frame = body(batch(value=b"v" * 100, timestamp=world.scheduler.clock.ms()), None)
    channel = FakeChannel(authorizer.generation)
    authorizer.cache.replace_all({})  # the rules changed after the decision
    request = cast("FastRequest", (channel, entry, 1, len(frame), 0, 0))
    assert not produces.take(request, frame, 0)
    channel.allowed_writes["t"] = authorizer.generation
    assert produces.take(request, frame, 0)
