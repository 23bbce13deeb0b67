"""SaslHandshake (17) v0-1 and SaslAuthenticate (36) v0-2 on a connection whose client is known.

Both come before any request: `tidelog.security.sasl.authenticator` answers them then, and while a connection
re-authenticates. Later, and on listeners without SASL, they are ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.network.request import Request
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.server.services import Services


def sasl_handshake(services: Services, request: Request, body: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    services: Services, request: Request, body: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
