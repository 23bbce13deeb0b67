"""DescribeLogDirs (key 35): what is in the log folders of a broker, and how large it is."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string


class DescribeLogDirsRequest(Message, key=35, versions="1-5", flexible="2+"):
    class DescribableLogDirTopic(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = array("0+", nullable="0+")


class DescribeLogDirsResponse(Message, key=35, versions="1-5", flexible="2+"):
    class DescribeLogDirsPartition(Struct):
        partition_index: int = int32("0+")
        partition_size: int = int64("0+")
        offset_lag: int = int64("0+")
        is_future_key: bool = boolean("0+")

    class DescribeLogDirsTopic(Struct):
        name: str = string("0+")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = array("0+")

    class DescribeLogDirsResult(Struct):
        error_code: int = int16("0+")
        log_dir: str = string("0+")
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = array("0+")
        total_bytes: int = int64("4+", default=-1, ignorable=True)
        usable_bytes: int = int64("4+", default=-1, ignorable=True)
        is_cordoned: bool = boolean("5+", ignorable=True)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = array("0+")
