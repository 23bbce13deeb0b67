"""A client that may do nothing, and every version of every API: the answer says so, or leaves things out."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.faults.client import Client, surprises
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.faults.test_fuzzed_requests import check_answer
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.api import ApiKey

MAY_CLOSE = {
    ApiKey.SASL_HANDSHAKE,  # a wrong mechanism, on a listener without SASL
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_ACLS,  # a rule of an unknown type
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_ACLS,
}


def test_a_client_without_rights_is_answered_in_every_version(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    closed = set()
    with Broker(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("fuzzed") == 29
        for payload in golden_payloads() + pointed_payloads(bytes(16)):
            key, version = struct.unpack_from(">hh", payload)
            with RawConnection(broker.address) as connection:
                connection.send_frame(payload)
                try:
                    check_answer(payload, connection.receive_frame(0.3 if key <= ApiKey.FETCH else 20))
                except ConnectionClosed:
                    closed.add((key, version))
                except NoAnswer:
                    assert key == ApiKey.PRODUCE  # acks=0
        assert surprises(broker.log()) == []
    assert {key for key, _ in closed} <= MAY_CLOSE, closed
