"""A user who connects to one broker at a time, to see whether that broker knows the newest changes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from tests.security.secured_clients import TOPIC, may, remove_rule, set_password
from tests.support import secure
from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tidelog import Admin
from tidelog.clients.admin import AclOperation, DelegationToken
from tidelog.clients.security import Security
from tidelog.errors import ErrorCode, SaslAuthenticationFailed
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

NAME = "visitor"
MAY_SEE = may(AclOperation.DESCRIBE, TOPIC, user=NAME)
QUOTA = "request_percentage"
LITTLE = 0.01
"""So many percent of a thread are used up by one request or by a few."""
REQUESTS = 30


class Visitor:
    """`changes` alter a password, a rule, a quota or a token; `problems` says what a broker does not know."""

    def __init__(self, admin: Admin) -> None:
        self._number = 0
        self._may_see = False
        self._has_quota = False
        self._token: DelegationToken | None = None
        self._removed_token: DelegationToken | None = None
        self._set_password(admin)

    @property
    def changes(self) -> list[Callable[[Admin], None]]:
        return [self._set_password, self._change_rule, self._change_quota, self._change_token]

    def _set_password(self, admin: Admin) -> None:
        self._number += 1
        set_password(admin, NAME, self._password(self._number))

    def _change_rule(self, admin: Admin) -> None:
        if self._may_see:
            remove_rule(admin, MAY_SEE)
        else:
            admin.create_acls([MAY_SEE])
        self._may_see = not self._may_see

    def _change_quota(self, admin: Admin) -> None:
        limits: Mapping[str, float | None] = {QUOTA: None if self._has_quota else LITTLE}
        admin.alter_client_quotas({(("user", NAME),): limits})
        self._has_quota = not self._has_quota

    def _change_token(self, admin: Admin) -> None:
        """Make a delegation token of the administrator, or remove it after it was renewed."""
        if self._token is None:
            self._token = admin.create_delegation_token()
        else:
            admin.renew_delegation_token(self._token.hmac)
            admin.expire_delegation_token(self._token.hmac)
            self._token, self._removed_token = None, self._token

    @staticmethod
    def _password(number: int) -> str:
        return f"visit-{number}"

    def problems(self, broker: Broker) -> list[str]:
        """What is out of date at a broker."""
        connection = _connection(broker, _login(NAME, self._password(self._number)))
        if connection is None:
            return ["the new password is refused"]
        with connection:
            found = self._problems(connection)
        if _connects(broker, _login(NAME, self._password(self._number - 1))):
            found.append("the old password is accepted")
        if self._token is not None and not _connects(broker, _token_login(self._token)):
            found.append("the token is refused")
        if self._removed_token is not None and _connects(broker, _token_login(self._removed_token)):
            found.append("the removed token is accepted")
        return found

    def _problems(self, connection: RawConnection) -> list[str]:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)])
        wanted = ErrorCode.NONE if self._may_see else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        is_throttled = False
        for _ in range(REQUESTS):
            answer = connection.ask(request, MetadataResponse, 9)
            if answer.topics[0].error_code != wanted:
                return [f"the topic has the error code {answer.topics[0].error_code} in place of {wanted}"]
            is_throttled = answer.throttle_time_ms > 0
            if is_throttled:
                break
        if is_throttled == self._has_quota:
            return []
        return ["the quota counts that was removed" if is_throttled else "the quota does not count"]


def _login(user: str, password: str, more: str = "") -> Security:
    return secure.security_of({**secure.properties(), **secure.jaas(user, password, more)})


def _token_login(token: DelegationToken) -> Security:
    return _login(token.token_id, base64.b64encode(token.hmac).decode(), " tokenauth=true")


def _connection(broker: Broker, login: Security) -> RawConnection | None:
    """None if the login is refused."""
    try:
        return RawConnection(broker.address, client_id=NAME, timeout=30.0, security=login)
    except SaslAuthenticationFailed:
        return None


def _connects(broker: Broker, login: Security) -> bool:
    connection = _connection(broker, login)
    if connection is None:
        return False
    connection.close()
    return True
