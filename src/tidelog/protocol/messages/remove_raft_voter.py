"""RemoveRaftVoter (key 81): let a controller vote no longer in the quorum."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import int16, int32, string, uuid


class RemoveRaftVoterRequest(Message, key=81, versions="0", flexible="0+"):
    cluster_id: str | None = string("0+", nullable="0+")
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")


class RemoveRaftVoterResponse(Message, key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)
