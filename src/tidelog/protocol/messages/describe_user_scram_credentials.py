"""DescribeUserScramCredentials (key 50): the SCRAM mechanisms of users."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class DescribeUserScramCredentialsRequest(Message, key=50, versions="0", flexible="0+"):
    class UserName(Struct):
        name: str = string("0+")

    users: list[DescribeUserScramCredentialsRequest.UserName] | None = array("0+", nullable="0+")


class DescribeUserScramCredentialsResponse(Message, key=50, versions="0", flexible="0+"):
    class CredentialInfo(Struct):
        mechanism: int = int8("0+")
        iterations: int = int32("0+")

    class DescribeUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = array("0+")
