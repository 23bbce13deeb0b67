"""The APIs of logins, access rules, users, tokens, quotas and clients' metrics.

Most brokers alone never get such a request: the module of a handler is imported with its first request.
"""

from __future__ import annotations

from importlib import import_module

from tidelog.network.request import Request
from tidelog.protocol.message import Message
from tidelog.server.apis.api import NOT_CHECKED, Answer, Api, Handler
from tidelog.server.services import Services


def _handler(module: str, name: str) -> Handler:
    """The handler `name` of a module of this package."""

    def handle(services: Services, request: Request, body: Message) -> Answer:
        found: Handler = getattr(import_module(f"tidelog.server.apis.{module}"), name)
        return found(services, request, body)

    return handle


APIS = (
    Api(17, 0, 1, _handler("sasl", "sasl_handshake"), access=NOT_CHECKED),
    Api(36, 0, 2, _handler("sasl", "sasl_authenticate"), access=NOT_CHECKED),
    Api(29, 1, 3, _handler("acls", "describe_acls"), access=("CLUSTER DESCRIBE",)),
    Api(30, 1, 3, _handler("acls", "create_acls"), access=("CLUSTER ALTER",)),
    Api(31, 1, 3, _handler("acls", "delete_acls"), access=("CLUSTER ALTER",)),
    Api(38, 1, 3, _handler("delegation_tokens", "create_delegation_token"), access=("USER CREATE_TOKENS",)),
    Api(39, 1, 2, _handler("delegation_tokens", "renew_delegation_token"), access=NOT_CHECKED),
    Api(40, 1, 2, _handler("delegation_tokens", "expire_delegation_token"), access=NOT_CHECKED),
    Api(
        41,
        1,
        3,
        _handler("delegation_tokens", "describe_delegation_token"),
        access=("DELEGATION_TOKEN DESCRIBE", "USER DESCRIBE_TOKENS"),
    ),
    Api(48, 0, 1, _handler("client_quotas", "describe_client_quotas"), access=("CLUSTER DESCRIBE_CONFIGS",)),
    Api(49, 0, 1, _handler("client_quotas", "alter_client_quotas"), access=("CLUSTER ALTER_CONFIGS",)),
    Api(
        50,
        0,
        0,
        _handler("scram_credentials", "describe_user_scram_credentials"),
        access=("CLUSTER DESCRIBE",),
    ),
    Api(
        51,
        0,
        0,
        _handler("scram_credentials", "alter_user_scram_credentials"),
        forwarded=True,
        access=("CLUSTER ALTER",),
    ),
    Api(
        71,
        0,
        0,
        _handler("telemetry", "get_telemetry_subscriptions"),
        for_collectors=True,
        access=NOT_CHECKED,
    ),
    Api(72, 0, 0, _handler("telemetry", "push_telemetry"), for_collectors=True, access=NOT_CHECKED),
)
