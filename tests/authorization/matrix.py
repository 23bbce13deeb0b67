"""The authorization matrix: every case in every scenario, played to a broker, with the parts of its answers
that depend on access rules.

Each cell has a user of its own, so that all rules can be there from the start.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from tests.authorization import cases
from tests.authorization.cases import CASES, CLUSTER, Case, Need
from tests.support.raw import ConnectionClosed, RawConnection, message_class
from tests.support.wait import eventually
from tidelog.protocol.json import Json, from_json, to_json
from tidelog.records.batch import Record, build_batch

SUPER_USER = "admin"
ALLOW, DENY = 3, 2
LITERAL, PREFIXED = 3, 4
ELSEWHERE = "10.11.12.13"
PREFIX = 4
"""The length of the prefixes: acl- and zap-."""

PARTITION_KEYS = ("partitionIndex", "partition", "index", "partitionId")
NAME_KEYS = ("name", "topicName", "topic", "groupId", "transactionalId", "resourceName", "key")
DROPPED_KEYS = ("configs", "synonyms", "apiKeys", "supportedFeatures", "finalizedFeatures", "members")
NOT_OF_THE_TEST = re.compile(r"(__|zap-|group\.|metadata\.|transaction\.|kraft)")

Connect = Callable[[str], RawConnection]
"""Connects as a user."""


@dataclass(slots=True, frozen=True)
class Rule:
    need: Need
    pattern: int = LITERAL
    host: str = "*"
    permission: int = ALLOW


def scenarios(case: Case) -> dict[str, list[Rule]]:
    """The rules of each scenario of a case, by its name."""
    needs = case.needs
    found: dict[str, list[Rule]] = {"none": [], "super": []}
    if not needs:
        return found
    exact = [Rule(need) for need in needs]
    found["exact"] = exact
    found["prefixed"] = [
        Rule(need) if need[0] == CLUSTER else Rule((need[0], need[1][:PREFIX], need[2]), PREFIXED)
        for need in needs
    ]
    found["wildcard"] = [
        Rule(need) if need[0] == CLUSTER else Rule((need[0], "*", need[2])) for need in needs
    ]
    found["all"] = [Rule((kind, name, cases.ALL)) for kind, name, _ in needs]
    found["deny"] = [*exact, Rule(needs[0], permission=DENY)]
    kind, name, _ = needs[0]
    if kind == CLUSTER:
        found["denyall"] = [*exact, Rule((kind, name, cases.ALL), permission=DENY)]
    else:
        found["denyall"] = [*exact, Rule((kind, name[:PREFIX], cases.ALL), PREFIXED, permission=DENY)]
    found["host"] = [Rule(need, host=ELSEWHERE) for need in needs]
    if len(needs) > 1:
        for index in range(len(needs)):
            found[f"without{index}"] = [rule for at, rule in enumerate(exact) if at != index]
    return found


def user_of(case: Case, scenario: str) -> str:
    return SUPER_USER if scenario == "super" else f"{case.name}_{scenario}"


def plain_connection(address: tuple[str, int] | str, user: str) -> RawConnection:
    """A connection as a user whose password is its name."""
    connection = RawConnection(address)
    connection.call_json("SaslHandshake", 1, {"mechanism": "PLAIN"})
    token = base64.b64encode(f"\0{user}\0{user}".encode()).decode()
    answer = connection.call_json("SaslAuthenticate", 1, {"authBytes": token})
    assert answer["errorCode"] == 0, answer
    return connection


def plain_settings() -> dict[str, str]:
    """The settings of a broker with the users of the matrix, on the listener SASL_PLAINTEXT."""
    passwords = " ".join(f'user_{user}="{user}"' for user in users())
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {passwords};"
        ),
    }


def users() -> list[str]:
    return [SUPER_USER] + [
        user_of(case, scenario) for case in CASES for scenario in scenarios(case) if scenario != "super"
    ]


def _named(text: str, case: Case, scenario: str) -> str:
    return text.replace("$s", f"{case.name}-{scenario}".replace("_", "-"))


class Matrix:
    """Prepares a broker and plays the cells. `connect` makes connections as a user."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._admin = connect(SUPER_USER)
        self._ids: dict[str, str] = {}
        self._broker = ""
        software: dict[str, Json] = {"clientSoftwareName": "t", "clientSoftwareVersion": "1"}
        answer = self._admin.call_json("ApiVersions", 3, software)
        self._versions = {
            cast("int", api["apiKey"]): (cast("int", api["minVersion"]), cast("int", api["maxVersion"]))
            for api in cast("list[dict[str, Json]]", answer["apiKeys"])
        }

    def serves(self, case: Case, version: int) -> bool:
        key = message_class(f"{case.api}Request").KEY or 0
        low, high = self._versions.get(key, (0, -1))
        return low <= version <= high

    # -- preparation

    def prepare(self) -> None:
        doomed = [
            _named(name, case, f"{scenario}-{version}")
            for case in CASES
            if case.name.startswith("delete_topics")
            for scenario in scenarios(case)
            for version in case.versions
            for name in (cases.DOOMED, cases.DOOMED_BY_ID, cases.OTHER)
        ]
        names = [cases.T1, cases.T2, *doomed]
        self._admin.call_json(
            "CreateTopics",
            5,
            {
                "topics": [{"name": name, "numPartitions": 1, "replicationFactor": 1} for name in names],
                "timeoutMs": 60000,
            },
            60.0,
        )
        eventually(lambda: self._find_topics(names) or None, "the topics are there", 60.0, 0.1)
        self._coordinator(0, cases.G1)
        self._coordinator(1, cases.X1)
        for group in (cases.G1, cases.G2):
            self._until_ready("OffsetCommit", 8, _commit(group))
        for name in (cases.X1, cases.OPEN):
            producer = self._until_ready(
                "InitProducerId", 4, {"transactionalId": name, "transactionTimeoutMs": 600000}
            )
        self._until_ready(
            "AddPartitionsToTxn",
            3,
            {
                "v3AndBelowTransactionalId": cases.OPEN,
                "v3AndBelowProducerId": producer["producerId"],
                "v3AndBelowProducerEpoch": producer["producerEpoch"],
                "v3AndBelowTopics": [{"name": name, "partitions": [0]} for name in (cases.T1, cases.T2)],
            },
        )
        for number in range(0, len(rules := list(_rules())), 200):
            answer = self._admin.call_json("CreateAcls", 2, {"creations": rules[number : number + 200]}, 60.0)
            for result in cast("list[dict[str, Json]]", answer["results"]):
                assert result["errorCode"] == 0, result
        eventually(lambda: self._count_rules() >= _distinct_rules() or None, "the rules are there", 60.0, 0.2)

    def _find_topics(self, names: Sequence[str]) -> bool:
        answer = self._admin.call_json("Metadata", 10, {"topics": [{"name": name} for name in names]})
        self._broker = str(cast("list[dict[str, Json]]", answer["brokers"])[0]["nodeId"])
        for topic in cast("list[dict[str, Json]]", answer["topics"]):
            partitions = cast("list[dict[str, Json]]", topic["partitions"])
            if topic["errorCode"] or any(part["errorCode"] for part in partitions) or not partitions:
                return False
            self._ids[cast("str", topic["name"])] = cast("str", topic["topicId"])
        return True

    def _coordinator(self, kind: int, key: str) -> None:
        self._until_ready("FindCoordinator", 3, {"key": key, "keyType": kind})

    def _until_ready(self, api: str, version: int, request: dict[str, Json]) -> dict[str, Json]:
        def ready() -> dict[str, Json] | None:
            answer = self._admin.call_json(api, version, request)
            return None if any(_codes(answer)) else answer

        return eventually(ready, f"{api} succeeds", 60.0, 0.2)

    def _count_rules(self) -> int:
        answer = self._admin.call_json(
            "DescribeAcls",
            2,
            {
                "resourceTypeFilter": 1,
                "resourceNameFilter": None,
                "patternTypeFilter": 1,
                "principalFilter": None,
                "hostFilter": None,
                "operation": 1,
                "permissionType": 1,
            },
        )
        resources = cast("list[dict[str, Json]]", answer["resources"])
        return sum(len(cast("list[Json]", resource["acls"])) for resource in resources)

    # -- cells

    def play(self, only: Callable[[Case], bool] = lambda _: True) -> Iterator[tuple[str, Json]]:
        """Each cell's name, case/scenario/version, and what its answer says."""
        for case in CASES:
            if not only(case):
                continue
            for version in case.versions:
                if not self.serves(case, version):
                    continue
                for scenario in scenarios(case):
                    yield f"{case.name}/{scenario}/{version}", self._cell(case, scenario, version)

    def _cell(self, case: Case, scenario: str, version: int) -> Json:
        if case.api == "ConsumerGroupDescribe":
            self._hold_group()
        request = self._filled(case.request(version), case, scenario, version)
        message = from_json(message_class(f"{case.api}Request"), version, cast("dict[str, Json]", request))
        connection = self._connect(user_of(case, scenario))
        try:
            answer = to_json(connection.call(message, version, 30.0), version)
        except ConnectionClosed:
            return "closed"
        finally:
            connection.close()
        return self._kept(answer, scenario, version, case)

    def _hold_group(self) -> None:
        """Have a member in the consumer group that is described: without members it has no topics."""
        self._admin.call_json(
            "ConsumerGroupHeartbeat",
            0,
            {
                "groupId": "acl-held",
                "memberId": "",
                "memberEpoch": 0,
                "instanceId": "held",
                "rebalanceTimeoutMs": 10000,
                "subscribedTopicNames": [cases.T1],
                "topicPartitions": [],
            },
        )

    def _filled(self, value: Json, case: Case, scenario: str, version: int) -> Json:
        if isinstance(value, dict):
            return {key: self._filled(item, case, scenario, version) for key, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item, case, scenario, version) for item in value]
        if not isinstance(value, str) or "$" not in value:
            return value
        if value == "$batch":
            return _batch(False)
        if value == "$txn-batch":
            return _batch(True)
        if value == "$broker":
            return self._broker
        named = _named(value, case, f"{scenario}-{version}" if "zap-" in value else scenario)
        return self._ids[named[4:]] if named.startswith("$id:") else named

    def _kept(self, value: Json, scenario: str, version: int, case: Case) -> Json:
        names = {topic_id: name for name, topic_id in self._ids.items()}

        def kept(item: Json) -> Json:
            if isinstance(item, list):
                found = [entry for entry in map(kept, item) if entry not in ({}, None)]
                return sorted(found, key=repr)
            if not isinstance(item, dict):
                return None
            out: dict[str, Json] = {}
            for key, inner in item.items():
                if key in DROPPED_KEYS or key == "throttleTimeMs":
                    continue
                is_partition = key in PARTITION_KEYS and isinstance(inner, int)
                if is_partition or key.lower().endswith(("errorcode", "authorizedoperations")):
                    out[key] = inner
                elif key == "topicId":
                    out[key] = "zero" if set(str(inner)) == {"A"} else names.get(str(inner), "unknown")
                elif key in NAME_KEYS and (inner is None or isinstance(inner, str)):
                    out[key] = inner
                elif isinstance(inner, (dict, list)):
                    below = kept(inner)
                    if below:
                        out[key] = below
            for key in NAME_KEYS:
                name = out.get(key)
                if isinstance(name, str) and NOT_OF_THE_TEST.match(name) and not case.name.startswith(
                    ("delete_topics", "metadata_create")
                ):
                    return {}
                if isinstance(name, str):
                    out[key] = name.replace(f"-{scenario}-{version}", "-$s")
                    if name == self._broker:
                        out[key] = "$broker"
            if isinstance(out.get("topicId"), str):
                out["topicId"] = cast("str", out["topicId"]).replace(f"-{scenario}-{version}", "-$s")
            return out

        return kept(value)


def _batch(transactional: bool) -> str:
    records = [Record(0, 1_700_000_000_000, b"key", b"value")]
    if transactional:
        made = build_batch(
            records, producer_id=999999, producer_epoch=0, base_sequence=0, transactional=True
        )
    else:
        made = build_batch(records)
    return base64.b64encode(made).decode()


def _commit(group: str) -> dict[str, Json]:
    return {
        "groupId": group,
        "topics": [
            {
                "name": name,
                "partitions": [{"partitionIndex": 0, "committedOffset": 0, "committedMetadata": ""}],
            }
            for name in (cases.T1, cases.T2)
        ],
    }


def _codes(answer: Json) -> Iterator[int]:
    if isinstance(answer, list):
        for item in answer:
            yield from _codes(item)
    elif isinstance(answer, dict):
        for key, item in answer.items():
            if key == "errorCode" and isinstance(item, int):
                yield item
            else:
                yield from _codes(item)


def _rules() -> Iterator[dict[str, Json]]:
    for case in CASES:
        for scenario, wanted in scenarios(case).items():
            for rule in wanted:
                kind, name, operation = rule.need
                versions = case.versions if "$s" in name else case.versions[:1]
                for version in versions:
                    yield {
                        "resourceType": kind,
                        "resourceName": _named(name, case, f"{scenario}-{version}"),
                        "resourcePatternType": rule.pattern,
                        "principal": f"User:{user_of(case, scenario)}",
                        "host": rule.host,
                        "operation": operation,
                        "permissionType": rule.permission,
                    }


def _distinct_rules() -> int:
    return len({tuple(rule.items()) for rule in _rules()})
