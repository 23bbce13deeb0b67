"""Consumer groups over the wire: their settings, what the broker announces, and that they outlive it."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.errors import ErrorCode
from tidelog.protocol.json import Json

GROUP_RESOURCE = 32
Object = dict[str, Json]


class Client:
    def __init__(self, bootstrap: str) -> None:
        self.connection = RawConnection(bootstrap)

    def call(self, api: str, version: int, **request: Json) -> Object:
        return self.connection.call_json(api, version, request)

    def coordinator(self, group: str) -> None:
        """Wait until somebody coordinates the group."""

        def is_found() -> bool:
            found = self.call("FindCoordinator", 4, keyType=0, coordinatorKeys=[group])["coordinators"]
            assert isinstance(found, list)
            assert isinstance(found[0], dict)
            return found[0]["errorCode"] == 0

        eventually(is_found, "a coordinator", 20.0)

    def say(self, group: str, member: str, epoch: int, **told: Json) -> Object:
        request: Object = {
            "groupId": group,
            "memberId": member,
            "memberEpoch": epoch,
            "instanceId": None,
            "rackId": None,
            "rebalanceTimeoutMs": -1,
            "subscribedTopicNames": None,
            "subscribedTopicRegex": None,
            "serverAssignor": None,
            "topicPartitions": None,
            **told,
        }
        answer: Object = {}

        def is_ready() -> bool:
            nonlocal answer
            answer = self.call("ConsumerGroupHeartbeat", 1, **request)
            return answer["errorCode"] not in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.NOT_COORDINATOR,
            )

        eventually(is_ready, "an answer", 20.0)
        return answer

    def join(self, group: str, member: str, *topics: str) -> Object:
        return self.say(
            group,
            member,
            0,
            rebalanceTimeoutMs=30_000,
            subscribedTopicNames=list(topics),
            topicPartitions=[],
        )

    def alter(self, group: str, name: str, value: str | None, operation: int = 0) -> Json:
        answer = self.call(
            "IncrementalAlterConfigs",
            1,
            validateOnly=False,
            resources=[
                {
                    "resourceType": GROUP_RESOURCE,
                    "resourceName": group,
                    "configs": [{"name": name, "configOperation": operation, "value": value}],
                }
            ],
        )
        assert isinstance(answer["responses"], list)
        assert isinstance(answer["responses"][0], dict)
        return answer["responses"][0]["errorCode"]

    def setting(self, group: str, name: str) -> tuple[Json, Json]:
        answer = self.call(
            "DescribeConfigs",
            4,
            includeSynonyms=False,
            includeDocumentation=False,
            resources=[{"resourceType": GROUP_RESOURCE, "resourceName": group, "configurationKeys": [name]}],
        )
        assert isinstance(answer["results"], list)
        assert isinstance(answer["results"][0], dict)
        configs = answer["results"][0]["configs"]
        assert isinstance(configs, list)
        assert isinstance(configs[0], dict)
        return configs[0]["value"], configs[0]["configSource"]


def test_the_settings_of_a_group_hold_at_once_and_after_a_restart(tmp_path: Path) -> None:
    name = "consumer.heartbeat.interval.ms"
    with Broker(tmp_path) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", 2)])
        client = Client(broker.bootstrap)
        client.coordinator("g")
        joined = client.join("g", "m", "orders")
        assert (joined["memberEpoch"], joined["heartbeatIntervalMs"]) == (2, 5000)
        assert client.alter("g", name, "7000") == 0
        assert client.alter("g", name, "1") == ErrorCode.INVALID_CONFIG
        assert client.alter("g", "nothing", "1") == ErrorCode.INVALID_CONFIG
        assert client.alter("", name, "7000") == ErrorCode.INVALID_REQUEST
        assert client.setting("g", name) == ("7000", 8)
        assert client.say("g", "m", 2)["heartbeatIntervalMs"] == 7000
        broker.kill()
        broker.start()
        client = Client(broker.bootstrap)
        listed = client.call("ListConfigResources", 1, resourceTypes=[GROUP_RESOURCE])
        assert listed["configResources"] == [{"resourceName": "g", "resourceType": GROUP_RESOURCE}]
        # The member goes on where it was: its epoch and its partitions are in the log.
        again = client.say("g", "m", 2)
        assert (again["errorCode"], again["memberEpoch"], again["heartbeatIntervalMs"]) == (0, 2, 7000)
        assert client.alter("g", name, None, operation=1) == 0
        assert client.setting("g", name) == ("5000", 5)


def test_the_feature_behind_consumer_groups_is_announced_as_kafka_does(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        answer = Client(broker.bootstrap).call(
            "ApiVersions", 4, clientSoftwareName="test", clientSoftwareVersion="1"
        )
    assert isinstance(answer["supportedFeatures"], list)
    assert isinstance(answer["finalizedFeatures"], list)
    assert {"name": "group.version", "minVersion": 0, "maxVersion": 1} in answer["supportedFeatures"]
    level = {"name": "group.version", "maxVersionLevel": 1, "minVersionLevel": 1}
    assert level in answer["finalizedFeatures"]
