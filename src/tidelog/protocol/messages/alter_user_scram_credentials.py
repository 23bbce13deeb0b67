"""AlterUserScramCredentials (key 51): set and delete the SCRAM credentials of users."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, int8, int16, int32, string


class AlterUserScramCredentialsRequest(Message, key=51, versions="0", flexible="0+"):
    class ScramCredentialDeletion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")

    class ScramCredentialUpsertion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")
        iterations: int = int32("0+")
        salt: bytes = binary("0+", sensitive=True)
        salted_password: bytes = binary("0+", sensitive=True)

    deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = array("0+")
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = array("0+")


class AlterUserScramCredentialsResponse(Message, key=51, versions="0", flexible="0+"):
    class AlterUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = array("0+")
