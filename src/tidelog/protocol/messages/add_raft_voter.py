"""AddRaftVoter (key 80): let a controller vote in the quorum."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, string, uint16, uuid


class AddRaftVoterRequest(Message, key=80, versions="0-1", flexible="0+"):
    class Listener(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")

    cluster_id: str | None = string("0+", nullable="0+")
    timeout_ms: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")
    listeners: list[AddRaftVoterRequest.Listener] = array("0+")
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Message, key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)
