"""Delegation tokens: their rules with a clock of the test's own, their APIs, and logins with them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import pytest

from tests.support.raw import RawConnection
from tests.support.sasl_broker import sasl_broker
from tests.support.sasl_walks import scram_final, scram_first
from tidelog import Admin
from tidelog.clients.admin.users import Principal
from tidelog.errors import (
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    ErrorCode,
    SaslAuthenticationFailed,
)
from tidelog.metadata.security_nodes import TokenNode
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.delegation_tokens import DelegationTokenManager, TokenSettings
from tidelog.security.scram import ScramAlgorithm
from tidelog.testing import Broker

ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
DAY, WEEK = 86_400_000, 604_800_000


class Store:
    def __init__(self) -> None:
        self.nodes: dict[str, TokenNode] = {}

    async def read_tokens(self) -> list[TokenNode]:
        return list(self.nodes.values())

    async def write_token(self, node: TokenNode) -> None:
        self.nodes[node.token_id] = node

    async def remove_token(self, token_id: str) -> None:
        del self.nodes[token_id]


class Tokens(DelegationTokenManager):
    def __init__(self, store: Store | None = None) -> None:
        self.now = 1000
        self.store = store or Store()
        super().__init__(TokenSettings("token-secret"), self.store, lambda: self.now)

    def make(self, max_lifetime_ms: int = -1) -> tuple[TokenNode, bytes]:
        node = asyncio.run(self.create(ALICE, CAROL, [BOB], max_lifetime_ms))
        return node, self.hmac_of(node.token_id)


def test_the_hmac_is_kafkas() -> None:
    kafkas = "uBbSwSCElv2MuWRLrCr0zJZzXU74PlCeYopqT6Aj+MsLylVnrR6eB9s8CC6Fe0l5QDBP9ceatvDKQdsww36xIg=="
    assert base64.b64encode(Tokens().hmac_of("V__DcOkPTR2KIAocFGIFPA")).decode() == kafkas


@pytest.mark.parametrize(
    ("asked", "expiry", "longest"),
    [(-1, DAY, WEEK), (0, DAY, WEEK), (5000, 5000, 5000), (2 * DAY, DAY, 2 * DAY), (2 * WEEK, DAY, WEEK)],
)
def test_the_life_of_a_token(asked: int, expiry: int, longest: int) -> None:
    node, _ = Tokens().make(asked)
    assert (node.expiry_timestamp, node.max_timestamp) == (1000 + expiry, 1000 + longest)


def test_owner_and_renewers_renew_up_to_the_longest_life() -> None:
    tokens = Tokens()
    _, hmac = tokens.make(2 * DAY)
    tokens.now = 1000 + DAY // 2
    assert asyncio.run(tokens.renew(ALICE, hmac, -1)) == tokens.now + DAY
    assert asyncio.run(tokens.renew(BOB, hmac, 10 * DAY)) == 1000 + 2 * DAY
    for other in (CAROL, "User:eve"):  # CAROL asked for the token
        for change in (tokens.renew, tokens.expire):
            with pytest.raises(DelegationTokenOwnerMismatch):
                asyncio.run(change(other, hmac, -1))
    with pytest.raises(DelegationTokenNotFound):
        asyncio.run(tokens.renew(ALICE, b"x", -1))


def test_an_expired_token_cannot_be_renewed_but_removed() -> None:
    tokens = Tokens()
    node, hmac = tokens.make()
    assert asyncio.run(tokens.expire(ALICE, hmac, 50)) == 1050
    tokens.now = 1051
    for change in (tokens.renew, tokens.expire):
        with pytest.raises(DelegationTokenExpired):
            asyncio.run(change(ALICE, hmac, 10))
    assert tokens.credential(node.token_id, ScramAlgorithm.SCRAM_SHA_256) is None
    assert asyncio.run(tokens.expire(ALICE, hmac, -1)) == 1051
    assert tokens.store.nodes == {}


def test_expired_tokens_are_removed() -> None:
    tokens = Tokens()
    kept, _ = tokens.make()
    tokens.make(10)
    tokens.now += 11
    asyncio.run(tokens.remove_expired())
    assert list(tokens.store.nodes) == [kept.token_id]
    assert list(tokens.tokens()) == [kept]


def test_another_broker_reads_the_tokens_and_forgets_removed_ones() -> None:
    tokens = Tokens()
    node, hmac = tokens.make()
    other = Tokens(tokens.store)
    asyncio.run(other.load())
    assert asyncio.run(other.renew(BOB, hmac, -1)) > 0
    tokens.store.nodes.clear()
    asyncio.run(other.load())
    assert other.credential(node.token_id, ScramAlgorithm.SCRAM_SHA_512) is None


# The broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(**{"delegation.token.secret.key": "token-secret"})
    yield broker
    broker.close()


def admin(
    broker: Broker, user: str, password: str, *, token: bool = False, mechanism: str = "PLAIN"
) -> Admin:
    module = (
        "org.apache.kafka.common.security.scram.ScramLoginModule"
        if token
        else ("org.apache.kafka.common.security.plain.PlainLoginModule")
    )
    extra = " tokenauth=true" if token else ""
    return Admin(
        {
            "bootstrap.servers": broker.address_of("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256" if token else mechanism,
            "sasl.jaas.config": f'{module} required username="{user}" password="{password}"{extra};',
        }
    )


def test_a_token_from_its_creation_to_its_end(broker: Broker) -> None:
    with admin(broker, "alice", "alice-secret") as alice:
        token = alice.create_delegation_token(renewers=[Principal("User", "bob")])
        assert token.owner == token.requester == Principal("User", "alice")
        password = base64.b64encode(token.hmac).decode()
        with admin(broker, token.token_id, password, token=True) as by_token:
            assert by_token.describe_cluster()
            with pytest.raises(DelegationTokenRequestNotAllowed):
                by_token.create_delegation_token()
        with admin(broker, "bob", "bob-secret") as bob:
            assert bob.renew_delegation_token(token.hmac, renew_period_ms=5000) < token.expiry_timestamp
            assert [found.token_id for found in bob.describe_delegation_tokens()] == [token.token_id]
            assert len(bob.describe_delegation_tokens([Principal("User", "bob")])) == 1  # may renew it
            assert bob.describe_delegation_tokens([Principal("User", "carol")]) == []
            assert bob.describe_delegation_tokens([]) == []
        broker.restart()
        with admin(broker, "bob", "bob-secret") as bob:
            (found,) = bob.describe_delegation_tokens()
            assert found.hmac == token.hmac
            bob.expire_delegation_token(token.hmac)
            assert bob.describe_delegation_tokens() == []
    with (
        pytest.raises(SaslAuthenticationFailed),
        admin(broker, token.token_id, password, token=True) as by_token,
    ):
        by_token.describe_cluster()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_unknown_client_gets_no_token(broker: Broker, version: int) -> None:
    with RawConnection(broker.address_of("PLAINTEXT")) as connection:
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        answer = connection.ask(request, CreateDelegationTokenResponse, version)
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert (answer.principal_name, answer.expiry_timestamp_ms) == ("ANONYMOUS", -1)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_describes_tokens(broker: Broker, version: int) -> None:
    with (
        admin(broker, "alice", "alice-secret") as alice,
        RawConnection(broker.address_of("SASL")) as connection,
    ):
        token = alice.create_delegation_token()
        connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        connection.call(SaslAuthenticateRequest(auth_bytes=b"\0bob\0bob-secret"), 2)
        answer = connection.ask(
            DescribeDelegationTokenRequest(owners=None), DescribeDelegationTokenResponse, version
        )
        alice.expire_delegation_token(token.hmac)
    (found,) = answer.tokens
    assert (found.token_id, found.principal_name) == (token.token_id, "alice")
    assert found.token_requester_principal_name == ("alice" if version == 3 else "")


def scram_login(connection: RawConnection, user: str, password: str, *, token: bool = False) -> None:
    """Log in by SCRAM-SHA-256, or re-authenticate."""
    connection.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    message = scram_first(user, extension=",tokenauth=true" if token else "")
    answer = connection.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 2)
    message = scram_final(message, bytes(answer.auth_bytes), password)
    answer = connection.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 2)
    assert answer.error_code == 0, answer.error_message


def create_token(connection: RawConnection) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(max_lifetime_ms=20_000)
    return connection.ask(request, CreateDelegationTokenResponse, 3)


@pytest.mark.parametrize("token_last", [True, False])
def test_the_last_login_of_a_connection_says_whether_it_is_by_a_token(
    broker: Broker, token_last: bool
) -> None:
    with RawConnection(broker.address_of("REAUTH")) as by_password:
        scram_login(by_password, "carol", "carol-secret")
        token = create_token(by_password)
        hmac = base64.b64encode(token.hmac).decode()
        with RawConnection(broker.address_of("REAUTH")) as connection:
            for by_token in (not token_last, token_last):
                user, password = (token.token_id, hmac) if by_token else ("carol", "carol-secret")
                scram_login(connection, user, password, token=by_token)
            expected = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if token_last else ErrorCode.NONE
            made = create_token(connection)
        assert made.error_code == expected
        for created in (token, made):
            if created.hmac:
                request = ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1)
                assert by_password.ask(request, ExpireDelegationTokenResponse, 2).error_code == 0
