"""Heartbeat (key 12): stay a member of a classic group."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import int16, int32, string


class HeartbeatRequest(Message, key=12, versions="0-4", flexible="4+"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
