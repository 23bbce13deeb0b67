"""DescribeDelegationToken (key 41): the delegation tokens of owners."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, int16, int32, int64, string


class DescribeDelegationTokenRequest(Message, key=41, versions="1-3", flexible="2+"):
    class DescribeDelegationTokenOwner(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = array(
        "0+", nullable="0+"
    )


class DescribeDelegationTokenResponse(Message, key=41, versions="1-3", flexible="2+"):
    class DescribedDelegationTokenRenewer(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    class DescribedDelegationToken(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")
        token_requester_principal_type: str = string("3+")
        token_requester_principal_name: str = string("3+")
        issue_timestamp: int = int64("0+")
        expiry_timestamp: int = int64("0+")
        max_timestamp: int = int64("0+")
        token_id: str = string("0+")
        hmac: bytes = binary("0+", sensitive=True)
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = array("0+")

    error_code: int = int16("0+")
    tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = array("0+")
    throttle_time_ms: int = int32("0+")
