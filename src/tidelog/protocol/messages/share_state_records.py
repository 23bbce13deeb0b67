"""Records of share partitions in `__share_group_state`."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string, uuid


class ShareSnapshotKey(Message, key=0, versions="0", flexible="none"):
    group_id: str = string("0")
    topic_id: bytes = uuid("0")
    partition: int = int32("0")


class ShareSnapshotValue(Message, key=0, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    snapshot_epoch: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    create_timestamp: int = int64("0+")
    write_timestamp: int = int64("0+")
    state_batches: list[ShareSnapshotValue.StateBatch] = array("0+")


class ShareUpdateKey(Message, key=1, versions="0", flexible="none"):
    group_id: str = string("0")
    topic_id: bytes = uuid("0")
    partition: int = int32("0")


class ShareUpdateValue(Message, key=1, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    snapshot_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    state_batches: list[ShareUpdateValue.StateBatch] = array("0+")
