"""FindCoordinator (key 10): which broker coordinates a group, a transactional id or a share partition."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Message, key=10, versions="0-6", flexible="3+"):
    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array("4+", "string")


class FindCoordinatorResponse(Message, key=10, versions="0-6", flexible="3+"):
    class Coordinator(Struct):
        key: str = string("4+")
        node_id: int = int32("4+")
        host: str = string("4+")
        port: int = int32("4+")
        error_code: int = int16("4+")
        error_message: str | None = string("4+", nullable="4+", ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[FindCoordinatorResponse.Coordinator] = array("4+")
