"""CreatePartitions (key 37): add partitions to topics."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, string


class CreatePartitionsRequest(Message, key=37, versions="0-3", flexible="2+"):
    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int] = array("0+", "int32")

    class CreatePartitionsTopic(Struct):
        name: str = string("0+")
        count: int = int32("0+")
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = array(
            "0+", nullable="0+"
        )

    topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = array("0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsResponse(Message, key=37, versions="0-3", flexible="2+"):
    class CreatePartitionsTopicResult(Struct):
        name: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = array("0+")
