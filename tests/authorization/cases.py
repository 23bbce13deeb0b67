"""The cases of the authorization matrix: a request of every API, and the operations that it needs.

Requests are JSON. `$id:NAME` is the id of a topic, `$batch` a record batch, `$txn-batch` a transactional one,
and `$s` the scenario, for resources that a case uses up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.protocol.json import Json

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 2, 3, 4, 5, 6, 7
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
CREATE_TOKENS, DESCRIBE_TOKENS = 13, 14
KAFKA_CLUSTER = "kafka-cluster"

T1, T2, MISSING = "acl-t1", "acl-t2", "acl-missing"
DOOMED, DOOMED_BY_ID, OTHER = "zap-doomed-$s", "zap-by-id-$s", "zap-other-$s"
G1, G2, X1, X2, OPEN = "acl-g1", "acl-g2", "acl-x1", "acl-x2", "acl-x-open"

Request = dict[str, Json]
Need = tuple[int, str, int]
"""Resource type, name and operation."""


@dataclass(slots=True, frozen=True)
class Case:
    name: str
    api: str
    versions: Sequence[int]
    needs: Sequence[Need]
    request: Callable[[int], Request]


CASES: list[Case] = []


def case(
    name: str, api: str, versions: Sequence[int], needs: Sequence[Need], request: Callable[[int], Request]
) -> None:
    CASES.append(Case(name, api, versions, needs, request))


def cluster(operation: int) -> Need:
    return (CLUSTER, KAFKA_CLUSTER, operation)


def topic(operation: int, name: str = T1) -> Need:
    return (TOPIC, name, operation)


def group(operation: int, name: str = G1) -> Need:
    return (GROUP, name, operation)


def transaction(operation: int, name: str = X1) -> Need:
    return (TRANSACTIONAL_ID, name, operation)


# -- records


def _produced(version: int, names: Sequence[str], batch: str = "$batch") -> list[Json]:
    return [
        {
            **({"name": name} if version < 13 else {"topicId": f"$id:{name}"}),
            "partitionData": [{"index": 0, "records": batch}],
        }
        for name in names
    ]


case(
    "produce",
    "Produce",
    (9, 11, 12, 13),
    (topic(WRITE), topic(WRITE, T2)),
    lambda v: {"acks": -1, "timeoutMs": 5000, "topicData": _produced(v, (T1, T2))},
)
case(
    "produce_missing",
    "Produce",
    (9, 11),
    (topic(WRITE, MISSING),),
    lambda v: {"acks": 1, "timeoutMs": 5000, "topicData": _produced(v, (MISSING,))},
)
case(
    "produce_one",
    "Produce",
    (9, 11),
    (topic(WRITE),),
    lambda v: {"acks": 1, "timeoutMs": 5000, "topicData": _produced(v, (T1,))},
)
case(
    "produce_transactional",
    "Produce",
    (11,),
    (transaction(WRITE), topic(WRITE)),
    lambda v: {
        "transactionalId": X1,
        "acks": -1,
        "timeoutMs": 5000,
        "topicData": _produced(v, (T1, T2), "$txn-batch"),
    },
)


def _fetched(version: int, names: Sequence[str]) -> list[Json]:
    return [
        {
            **({"topic": name} if version < 13 else {"topicId": f"$id:{name}"}),
            "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}],
        }
        for name in names
    ]


case(
    "fetch",
    "Fetch",
    (4, 12, 13, 17),
    (topic(READ), topic(READ, T2)),
    lambda v: {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 10000, "topics": _fetched(v, (T1, T2))},
)
case(
    "fetch_missing",
    "Fetch",
    (12,),
    (topic(READ, MISSING),),
    lambda v: {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 10000, "topics": _fetched(v, (MISSING,))},
)
case(
    "fetch_unknown_id",
    "Fetch",
    (17,),
    (topic(READ),),
    lambda v: {
        "maxWaitMs": 0,
        "minBytes": 0,
        "maxBytes": 10000,
        "topics": [
            {
                "topicId": "AAAAAAAAAAAAAAAAAAAAKg",
                "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}],
            }
        ],
    },
)
case(
    "fetch_follower",
    "Fetch",
    (12, 17),
    (cluster(CLUSTER_ACTION),),
    lambda v: {
        **({"replicaId": 77} if v < 15 else {"replicaState": {"replicaId": 77, "replicaEpoch": -1}}),
        "maxWaitMs": 0,
        "minBytes": 0,
        "maxBytes": 10000,
        "topics": _fetched(v, (T1, MISSING) if v < 13 else (T1,)),
    },
)
case(
    "list_offsets",
    "ListOffsets",
    (1, 9),
    (topic(DESCRIBE), topic(DESCRIBE, T2)),
    lambda v: {
        "replicaId": -1,
        "topics": [
            {"name": name, "partitions": [{"partitionIndex": 0, "timestamp": -2}]}
            for name in (T1, T2, MISSING)
        ],
    },
)
case(
    "offset_for_leader_epoch",
    "OffsetForLeaderEpoch",
    (4,),
    (topic(DESCRIBE),),
    lambda v: {
        "replicaId": -1,
        "topics": [
            {"topic": name, "partitions": [{"partition": 0, "leaderEpoch": 0}]} for name in (T1, T2, MISSING)
        ],
    },
)
case(
    "offset_for_leader_epoch_follower",
    "OffsetForLeaderEpoch",
    (4,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {
        "replicaId": 77,
        "topics": [{"topic": name, "partitions": [{"partition": 0, "leaderEpoch": 0}]} for name in (T1, T2)],
    },
)
case(
    "delete_records",
    "DeleteRecords",
    (1, 2),
    (topic(DELETE),),
    lambda v: {
        "timeoutMs": 5000,
        "topics": [
            {"name": name, "partitions": [{"partitionIndex": 0, "offset": 0}]} for name in (T1, T2, MISSING)
        ],
    },
)

# -- metadata

METADATA_FLAGS: Request = {"allowAutoTopicCreation": False, "includeTopicAuthorizedOperations": True}

case(
    "metadata",
    "Metadata",
    (1, 10, 12),
    (topic(DESCRIBE), topic(DESCRIBE, T2)),
    lambda v: {
        **(METADATA_FLAGS if v >= 8 else {}),
        **({"includeClusterAuthorizedOperations": True} if 8 <= v <= 10 else {}),
        "topics": [{"name": name} for name in (T1, T2)],
    },
)
case(
    "metadata_all",
    "Metadata",
    (1, 10, 12),
    (topic(DESCRIBE),),
    lambda v: {
        **(METADATA_FLAGS if v >= 8 else {}),
        **({"includeClusterAuthorizedOperations": True} if 8 <= v <= 10 else {}),
        "topics": None,
    },
)
case(
    "metadata_read",
    "Metadata",
    (12,),
    (topic(READ),),
    lambda v: {**METADATA_FLAGS, "topics": [{"name": T1}, {"name": MISSING}]},
)
case(
    "metadata_id",
    "Metadata",
    (12,),
    (topic(DESCRIBE),),
    lambda v: {
        **METADATA_FLAGS,
        "topics": [
            {"topicId": f"$id:{T1}", "name": None},
            {"topicId": f"$id:{T2}", "name": None},
            {"topicId": "AAAAAAAAAAAAAAAAAAAAKg", "name": None},
        ],
    },
)
case(
    "metadata_missing",
    "Metadata",
    (12,),
    (topic(DESCRIBE, MISSING),),
    lambda v: {**METADATA_FLAGS, "topics": [{"name": MISSING}]},
)
case(
    "metadata_create_topic",
    "Metadata",
    (4, 12),
    (topic(DESCRIBE, "zap-auto-$s"), topic(CREATE, "zap-auto-$s")),
    lambda v: {"allowAutoTopicCreation": True, "topics": [{"name": "zap-auto-$s"}]},
)
case(
    "metadata_create_cluster",
    "Metadata",
    (12,),
    (topic(DESCRIBE, "zap-autoc-$s"), cluster(CREATE)),
    lambda v: {"allowAutoTopicCreation": True, "topics": [{"name": "zap-autoc-$s"}]},
)
case(
    "describe_topic_partitions",
    "DescribeTopicPartitions",
    (0,),
    (topic(DESCRIBE),),
    lambda v: {"topics": [{"name": name} for name in (T1, T2, MISSING)]},
)
case(
    "describe_topic_partitions_all",
    "DescribeTopicPartitions",
    (0,),
    (topic(DESCRIBE),),
    lambda v: {"topics": []},
)
case(
    "describe_cluster",
    "DescribeCluster",
    (0, 1),
    (cluster(DESCRIBE),),
    lambda v: {"includeClusterAuthorizedOperations": True},
)
case(
    "describe_cluster_alter",
    "DescribeCluster",
    (1,),
    (cluster(DESCRIBE), cluster(ALTER), cluster(ALTER_CONFIGS)),
    lambda v: {"includeClusterAuthorizedOperations": True},
)

# -- topics


def _new_topics(*names: str) -> list[Json]:
    return [{"name": name, "numPartitions": 1, "replicationFactor": 1} for name in names]


case(
    "create_topics",
    "CreateTopics",
    (7,),
    (topic(CREATE, "acl-new1"),),
    lambda v: {"validateOnly": True, "topics": _new_topics("acl-new1", "acl-new2")},
)
case(
    "create_topics_configs",
    "CreateTopics",
    (4, 7),
    (topic(CREATE, "acl-new1"), topic(DESCRIBE_CONFIGS, "acl-new1")),
    lambda v: {"validateOnly": True, "topics": _new_topics("acl-new1")},
)
case(
    "create_topics_cluster",
    "CreateTopics",
    (7,),
    (cluster(CREATE),),
    lambda v: {"validateOnly": True, "topics": _new_topics("acl-new1", T1)},
)
case(
    "create_topics_existing",
    "CreateTopics",
    (7,),
    (topic(CREATE),),
    lambda v: {"validateOnly": True, "topics": _new_topics(T1, T2)},
)
case(
    "delete_topics",
    "DeleteTopics",
    (5, 6),
    (topic(DELETE, DOOMED),),
    lambda v: {
        "timeoutMs": 10000,
        **(
            {"topicNames": [DOOMED, OTHER, MISSING]}
            if v < 6
            else {"topics": [{"name": name} for name in (DOOMED, OTHER, MISSING)]}
        ),
    },
)
case(
    "delete_topics_by_id",
    "DeleteTopics",
    (6,),
    (topic(DESCRIBE, DOOMED_BY_ID), topic(DELETE, DOOMED_BY_ID)),
    lambda v: {
        "timeoutMs": 10000,
        "topics": [
            {"topicId": f"$id:{DOOMED_BY_ID}"},
            {"topicId": f"$id:{OTHER}"},
            {"topicId": "AAAAAAAAAAAAAAAAAAAAKg"},
        ],
    },
)
case(
    "create_partitions",
    "CreatePartitions",
    (3,),
    (topic(ALTER),),
    lambda v: {
        "validateOnly": True,
        "timeoutMs": 5000,
        "topics": [{"name": name, "count": 9, "assignments": None} for name in (T1, T2, MISSING)],
    },
)

# -- groups

case(
    "find_coordinator",
    "FindCoordinator",
    (2, 4),
    (group(DESCRIBE),),
    lambda v: {"keyType": 0, **({"key": G1} if v < 4 else {"coordinatorKeys": [G1, G2]})},
)
case(
    "find_coordinator_transaction",
    "FindCoordinator",
    (2, 4),
    (transaction(DESCRIBE),),
    lambda v: {"keyType": 1, **({"key": X1} if v < 4 else {"coordinatorKeys": [X1, X2]})},
)
case(
    "join_group",
    "JoinGroup",
    (9,),
    (group(READ),),
    lambda v: {
        "groupId": G1,
        "sessionTimeoutMs": 10000,
        "rebalanceTimeoutMs": 10000,
        "memberId": "",
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": "AAAAAAAA"}],
    },
)
case(
    "sync_group",
    "SyncGroup",
    (5,),
    (group(READ),),
    lambda v: {
        "groupId": G1,
        "generationId": 1,
        "memberId": "nobody",
        "protocolType": "consumer",
        "protocolName": "range",
    },
)
case(
    "heartbeat",
    "Heartbeat",
    (4,),
    (group(READ),),
    lambda v: {"groupId": G1, "generationId": 1, "memberId": "nobody"},
)
case(
    "leave_group",
    "LeaveGroup",
    (2, 5),
    (group(READ),),
    lambda v: {
        "groupId": G1,
        **({"memberId": "nobody"} if v < 3 else {"members": [{"memberId": "nobody"}]}),
    },
)
case(
    "describe_groups",
    "DescribeGroups",
    (5,),
    (group(DESCRIBE),),
    lambda v: {"groups": [G1, G2], "includeAuthorizedOperations": True},
)
case(
    "describe_groups_read",
    "DescribeGroups",
    (5,),
    (group(READ), group(DELETE)),
    lambda v: {"groups": [G1], "includeAuthorizedOperations": True},
)
case("list_groups", "ListGroups", (4,), (group(DESCRIBE),), lambda v: {})
case("list_groups_cluster", "ListGroups", (4,), (cluster(DESCRIBE),), lambda v: {})
case(
    "delete_groups",
    "DeleteGroups",
    (2,),
    (group(DELETE, "acl-none"),),
    lambda v: {"groupsNames": ["acl-none", "acl-none2"]},
)
case(
    "offset_commit",
    "OffsetCommit",
    (9,),
    (group(READ, "acl-commit"), topic(READ)),
    lambda v: {
        "groupId": "acl-commit",
        "topics": [
            {
                "name": name,
                "partitions": [{"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}],
            }
            for name in (T1, T2, MISSING)
        ],
    },
)
case(
    "offset_commit_ids",
    "OffsetCommit",
    (10,),
    (group(READ, "acl-commit"), topic(READ)),
    lambda v: {
        "groupId": "acl-commit",
        "topics": [
            {
                "topicId": topic_id,
                "partitions": [{"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}],
            }
            for topic_id in (f"$id:{T1}", f"$id:{T2}", "AAAAAAAAAAAAAAAAAAAAKg")
        ],
    },
)
case(
    "offset_fetch",
    "OffsetFetch",
    (5, 9),
    (group(DESCRIBE), topic(DESCRIBE)),
    lambda v: (
        {"groupId": G1, "topics": [{"name": name, "partitionIndexes": [0]} for name in (T1, T2, MISSING)]}
        if v < 8
        else {
            "groups": [
                {
                    "groupId": name,
                    "topics": [{"name": topic, "partitionIndexes": [0]} for topic in (T1, T2, MISSING)],
                }
                for name in (G1, G2)
            ]
        }
    ),
)
case(
    "offset_fetch_ids",
    "OffsetFetch",
    (10,),
    (group(DESCRIBE), topic(DESCRIBE)),
    lambda v: {
        "groups": [
            {
                "groupId": G1,
                "topics": [
                    {"topicId": topic_id, "partitionIndexes": [0]}
                    for topic_id in (f"$id:{T1}", f"$id:{T2}", "AAAAAAAAAAAAAAAAAAAAKg")
                ],
            }
        ]
    },
)
case(
    "offset_fetch_all",
    "OffsetFetch",
    (5, 9),
    (group(DESCRIBE), topic(DESCRIBE)),
    lambda v: {"groupId": G1, "topics": None} if v < 8 else {"groups": [{"groupId": G1, "topics": None}]},
)
case(
    "offset_delete",
    "OffsetDelete",
    (0,),
    (group(DELETE, G2), topic(READ)),
    lambda v: {
        "groupId": G2,
        "topics": [{"name": name, "partitions": [{"partitionIndex": 0}]} for name in (T1, T2, MISSING)],
    },
)
case(
    "consumer_group_heartbeat",
    "ConsumerGroupHeartbeat",
    (0, 1),
    (group(READ, "acl-cg"), topic(DESCRIBE)),
    lambda v: {
        "groupId": "acl-cg",
        "memberId": "" if v == 0 else "member-$s",
        "memberEpoch": 0,
        "rebalanceTimeoutMs": 10000,
        "subscribedTopicNames": [T1],
        "topicPartitions": [],
    },
)
case(
    "consumer_group_describe",
    "ConsumerGroupDescribe",
    (0, 1),
    (group(DESCRIBE, "acl-held"), topic(DESCRIBE)),
    lambda v: {"groupIds": ["acl-held", "acl-none"], "includeAuthorizedOperations": True},
)

# -- transactions

case(
    "init_producer_id",
    "InitProducerId",
    (4,),
    (topic(WRITE),),
    lambda v: {"transactionalId": None, "transactionTimeoutMs": 10000},
)
case(
    "init_producer_id_cluster",
    "InitProducerId",
    (4,),
    (cluster(IDEMPOTENT_WRITE),),
    lambda v: {"transactionalId": None, "transactionTimeoutMs": 10000},
)
case(
    "init_producer_id_transactional",
    "InitProducerId",
    (4,),
    (transaction(WRITE, X2),),
    lambda v: {"transactionalId": X2, "transactionTimeoutMs": 10000},
)
case(
    "add_partitions_to_txn",
    "AddPartitionsToTxn",
    (3,),
    (transaction(WRITE), topic(WRITE), topic(WRITE, T2)),
    lambda v: {
        "v3AndBelowTransactionalId": X1,
        "v3AndBelowProducerId": 999999,
        "v3AndBelowProducerEpoch": 0,
        "v3AndBelowTopics": [{"name": name, "partitions": [0]} for name in (T1, T2)],
    },
)
case(
    "add_partitions_to_txn_missing",
    "AddPartitionsToTxn",
    (3,),
    (transaction(WRITE), topic(WRITE), topic(WRITE, MISSING)),
    lambda v: {
        "v3AndBelowTransactionalId": X1,
        "v3AndBelowProducerId": 999999,
        "v3AndBelowProducerEpoch": 0,
        "v3AndBelowTopics": [{"name": name, "partitions": [0]} for name in (T1, MISSING)],
    },
)
case(
    "add_partitions_to_txn_brokers",
    "AddPartitionsToTxn",
    (4, 5),
    (cluster(CLUSTER_ACTION), transaction(WRITE), topic(WRITE)),
    lambda v: {
        "transactions": [
            {
                "transactionalId": X1,
                "producerId": 999999,
                "producerEpoch": 0,
                "verifyOnly": True,
                "topics": [{"name": T1, "partitions": [0]}],
            }
        ]
    },
)
case(
    "add_offsets_to_txn",
    "AddOffsetsToTxn",
    (3,),
    (transaction(WRITE), group(READ)),
    lambda v: {"transactionalId": X1, "producerId": 999999, "producerEpoch": 0, "groupId": G1},
)
case(
    "end_txn",
    "EndTxn",
    (3,),
    (transaction(WRITE),),
    lambda v: {"transactionalId": X1, "producerId": 999999, "producerEpoch": 0, "committed": True},
)
case(
    "txn_offset_commit",
    "TxnOffsetCommit",
    (3,),
    (transaction(WRITE), group(READ), topic(READ)),
    lambda v: {
        "transactionalId": X1,
        "groupId": G1,
        "producerId": 999999,
        "producerEpoch": 0,
        "topics": [
            {
                "name": name,
                "partitions": [{"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}],
            }
            for name in (T1, T2, MISSING)
        ],
    },
)
case(
    "describe_transactions",
    "DescribeTransactions",
    (0,),
    (transaction(DESCRIBE, OPEN), topic(DESCRIBE)),
    lambda v: {"transactionalIds": [OPEN, X1, "acl-none"]},
)
case("list_transactions", "ListTransactions", (0, 1), (transaction(DESCRIBE),), lambda v: {})
case(
    "describe_producers",
    "DescribeProducers",
    (0,),
    (topic(READ),),
    lambda v: {"topics": [{"name": name, "partitionIndexes": [0]} for name in (T1, T2, MISSING)]},
)
case(
    "write_txn_markers",
    "WriteTxnMarkers",
    (1,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {
        "markers": [
            {
                "producerId": 999999,
                "producerEpoch": 0,
                "transactionResult": False,
                "topics": [{"name": MISSING, "partitionIndexes": [0]}],
            }
        ]
    },
)
case(
    "write_txn_markers_alter",
    "WriteTxnMarkers",
    (1,),
    (cluster(ALTER),),
    lambda v: {
        "markers": [
            {
                "producerId": 999999,
                "producerEpoch": 0,
                "transactionResult": False,
                "topics": [{"name": MISSING, "partitionIndexes": [0]}],
            }
        ]
    },
)

# -- access rules

ANY_ACL: Request = {
    "resourceTypeFilter": 2,
    "resourceNameFilter": "acl-nothing",
    "patternTypeFilter": 3,
    "principalFilter": None,
    "hostFilter": None,
    "operation": 1,
    "permissionType": 1,
}
case("describe_acls", "DescribeAcls", (1, 3), (cluster(DESCRIBE),), lambda v: {**ANY_ACL})
case("delete_acls", "DeleteAcls", (1, 3), (cluster(ALTER),), lambda v: {"filters": [ANY_ACL, ANY_ACL]})
case(
    "create_acls",
    "CreateAcls",
    (1, 3),
    (cluster(ALTER),),
    lambda v: {
        "creations": [
            {
                "resourceType": 2,
                "resourceName": "acl-created",
                "resourcePatternType": 3,
                "principal": "User:nobody",
                "host": "*",
                "operation": 3,
                "permissionType": 3,
            }
        ]
    },
)

# -- settings

RESOURCES = ((2, T1), (2, T2), (2, MISSING), (4, "$broker"), (8, "$broker"))


def _resources(kinds: Sequence[tuple[int, str]], more: Request) -> list[Json]:
    return [{"resourceType": kind, "resourceName": name, **more} for kind, name in kinds]


case(
    "describe_configs",
    "DescribeConfigs",
    (4,),
    (topic(DESCRIBE_CONFIGS), cluster(DESCRIBE_CONFIGS)),
    lambda v: {"resources": _resources(RESOURCES, {"configurationKeys": ["retention.ms"]})},
)
case(
    "describe_configs_groups",
    "DescribeConfigs",
    (4,),
    (group(DESCRIBE_CONFIGS),),
    lambda v: {"resources": _resources(((32, G1), (32, G2)), {"configurationKeys": None})},
)
case(
    "describe_configs_client_metrics",
    "DescribeConfigs",
    (4,),
    (cluster(DESCRIBE_CONFIGS),),
    lambda v: {"resources": _resources(((16, "acl-metrics"),), {"configurationKeys": None})},
)
case(
    "alter_configs",
    "AlterConfigs",
    (2,),
    (topic(ALTER_CONFIGS), cluster(ALTER_CONFIGS)),
    lambda v: {"validateOnly": True, "resources": _resources(RESOURCES[:4], {"configs": []})},
)
case(
    "alter_configs_groups",
    "AlterConfigs",
    (2,),
    (group(ALTER_CONFIGS),),
    lambda v: {"validateOnly": True, "resources": _resources(((32, G1), (32, G2)), {"configs": []})},
)
case(
    "incremental_alter_configs",
    "IncrementalAlterConfigs",
    (1,),
    (topic(ALTER_CONFIGS), cluster(ALTER_CONFIGS)),
    lambda v: {"validateOnly": True, "resources": _resources(RESOURCES, {"configs": []})},
)
case(
    "incremental_alter_configs_groups",
    "IncrementalAlterConfigs",
    (1,),
    (group(ALTER_CONFIGS),),
    lambda v: {"validateOnly": True, "resources": _resources(((32, G1), (32, G2)), {"configs": []})},
)
case(
    "list_config_resources",
    "ListConfigResources",
    (0, 1),
    (cluster(DESCRIBE_CONFIGS),),
    lambda v: {} if v == 0 else {"resourceTypes": [16]},
)

# -- the cluster

case(
    "describe_log_dirs",
    "DescribeLogDirs",
    (4,),
    (cluster(DESCRIBE),),
    lambda v: {"topics": [{"topic": T1, "partitions": [0]}]},
)
case(
    "alter_replica_log_dirs",
    "AlterReplicaLogDirs",
    (2,),
    (cluster(ALTER),),
    lambda v: {
        "dirs": [
            {"path": "/nowhere", "topics": [{"name": T1, "partitions": [0]}, {"name": T2, "partitions": [0]}]}
        ]
    },
)
case(
    "elect_leaders",
    "ElectLeaders",
    (2,),
    (cluster(ALTER),),
    lambda v: {
        "electionType": 0,
        "topicPartitions": [{"topic": T1, "partitions": [0]}, {"topic": MISSING, "partitions": [0]}],
        "timeoutMs": 5000,
    },
)
case(
    "elect_leaders_all",
    "ElectLeaders",
    (2,),
    (cluster(ALTER),),
    lambda v: {"electionType": 0, "topicPartitions": None, "timeoutMs": 5000},
)
case(
    "alter_partition_reassignments",
    "AlterPartitionReassignments",
    (0,),
    (cluster(ALTER),),
    lambda v: {
        "timeoutMs": 5000,
        "topics": [
            {"name": T1, "partitions": [{"partitionIndex": 0, "replicas": None}]},
            {"name": MISSING, "partitions": [{"partitionIndex": 0, "replicas": None}]},
        ],
    },
)
case(
    "list_partition_reassignments",
    "ListPartitionReassignments",
    (0,),
    (cluster(DESCRIBE),),
    lambda v: {"timeoutMs": 5000, "topics": None},
)
case(
    "update_features",
    "UpdateFeatures",
    (1,),
    (cluster(ALTER),),
    lambda v: {
        "timeoutMs": 5000,
        "featureUpdates": [{"feature": "acl-none", "maxVersionLevel": 1, "upgradeType": 1}],
        "validateOnly": True,
    },
)
case("unregister_broker", "UnregisterBroker", (0,), (cluster(ALTER),), lambda v: {"brokerId": 999})
case("describe_quorum", "DescribeQuorum", (1,), (cluster(DESCRIBE),), lambda v: {})

# -- users and quotas

case(
    "describe_client_quotas",
    "DescribeClientQuotas",
    (1,),
    (cluster(DESCRIBE_CONFIGS),),
    lambda v: {"components": [{"entityType": "user", "matchType": 0, "match": "nobody"}], "strict": True},
)
case(
    "alter_client_quotas",
    "AlterClientQuotas",
    (1,),
    (cluster(ALTER_CONFIGS),),
    lambda v: {
        "entries": [
            {
                "entity": [{"entityType": "user", "entityName": "nobody"}],
                "ops": [{"key": "producer_byte_rate", "value": 1000.0}],
            }
        ],
        "validateOnly": True,
    },
)
case(
    "describe_user_scram_credentials",
    "DescribeUserScramCredentials",
    (0,),
    (cluster(DESCRIBE),),
    lambda v: {"users": [{"name": "nobody"}]},
)
case(
    "alter_user_scram_credentials",
    "AlterUserScramCredentials",
    (0,),
    (cluster(ALTER),),
    lambda v: {"deletions": [{"name": "nobody", "mechanism": 1}]},
)
case(
    "describe_delegation_token",
    "DescribeDelegationToken",
    (2,),
    (),
    lambda v: {"owners": None},
)
case(
    "get_telemetry_subscriptions",
    "GetTelemetrySubscriptions",
    (0,),
    (),
    lambda v: {"clientInstanceId": "AAAAAAAAAAAAAAAAAAAAAA"},
)
case(
    "api_versions",
    "ApiVersions",
    (3,),
    (),
    lambda v: {"clientSoftwareName": "t", "clientSoftwareVersion": "1"},
)

# -- between brokers

case(
    "leader_and_isr",
    "LeaderAndIsr",
    (7,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {"controllerId": 99, "controllerEpoch": 0, "topicStates": [], "liveLeaders": []},
)
case(
    "stop_replica",
    "StopReplica",
    (4,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {
        "controllerId": 99,
        "controllerEpoch": 0,
        "topicStates": [
            {"topicName": MISSING, "partitionStates": [{"partitionIndex": 0, "leaderEpoch": 0}]}
        ],
    },
)
case(
    "update_metadata",
    "UpdateMetadata",
    (8,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {"controllerId": 99, "controllerEpoch": 0, "topicStates": [], "liveBrokers": []},
)
case(
    "controlled_shutdown",
    "ControlledShutdown",
    (3,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {"brokerId": 999, "brokerEpoch": 1},
)
case(
    "alter_partition",
    "AlterPartition",
    (3,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {"brokerId": 999, "brokerEpoch": 1, "topics": []},
)
case(
    "allocate_producer_ids",
    "AllocateProducerIds",
    (0,),
    (cluster(CLUSTER_ACTION),),
    lambda v: {"brokerId": 999, "brokerEpoch": 1},
)
