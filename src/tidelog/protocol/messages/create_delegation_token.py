"""CreateDelegationToken (key 38): get a delegation token."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, int16, int32, int64, string


class CreateDelegationTokenRequest(Message, key=38, versions="1-3", flexible="2+"):
    class CreatableRenewers(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = array("0+")
    max_lifetime_ms: int = int64("0+")


class CreateDelegationTokenResponse(Message, key=38, versions="1-3", flexible="2+"):
    error_code: int = int16("0+")
    principal_type: str = string("0+")
    principal_name: str = string("0+")
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64("0+")
    expiry_timestamp_ms: int = int64("0+")
    max_timestamp_ms: int = int64("0+")
    token_id: str = string("0+")
    hmac: bytes = binary("0+", sensitive=True)
    throttle_time_ms: int = int32("0+")
