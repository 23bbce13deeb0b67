"""StopReplica (key 5): a controller in ZooKeeper mode tells a broker to stop or delete replicas.

The tagged fields are our own. Kafka ignores them, as it does with every tag that it does not know.
"""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string

REFUSAL_TAG = 1000
"""Far from the tags that Kafka counts up from 0."""


class StopReplicaRequest(Message, key=5, versions="0-4", flexible="2+"):
    class StopReplicaPartitionV0(Struct):
        topic_name: str = string("0")
        partition_index: int = int32("0")

    class StopReplicaTopicV1(Struct):
        name: str = string("1-2")
        partition_indexes: list[int] = array("1-2", "int32")

    class StopReplicaPartitionState(Struct):
        partition_index: int = int32("3+")
        leader_epoch: int = int32("3+", default=-1)
        delete_partition: bool = boolean("3+")

    class StopReplicaTopicState(Struct):
        topic_name: str = string("3+")
        partition_states: list[StopReplicaRequest.StopReplicaPartitionState] = array("3+")

    controller_id: int = int32("0+")
    is_kraft_controller: bool = boolean("4+", json="isKRaftController")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("1+", default=-1, ignorable=True)
    delete_partitions: bool = boolean("0-2")
    ungrouped_partitions: list[StopReplicaRequest.StopReplicaPartitionV0] = array("0")
    topics: list[StopReplicaRequest.StopReplicaTopicV1] = array("1-2")
    topic_states: list[StopReplicaRequest.StopReplicaTopicState] = array("3+")
    refusing_broker_id: int = int32("3+", default=-1, tag=REFUSAL_TAG)
    """Asks whether the address of this broker refuses connections; -1 asks nothing."""


class StopReplicaResponse(Message, key=5, versions="0-4", flexible="2+"):
    class StopReplicaPartitionError(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    error_code: int = int16("0+")
    partition_errors: list[StopReplicaResponse.StopReplicaPartitionError] = array("0+")
    is_refused: bool = boolean("3+", tag=REFUSAL_TAG)
    """Whether a connection to `refusing_broker_id` was refused."""
