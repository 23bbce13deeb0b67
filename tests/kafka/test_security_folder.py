"""The files of `tidelog security init` serve Kafka 3.9, its tools and our clients alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.jars import run_tool
from tests.kafka.servers import ONE_BROKER, Kafka3, ZooKeeper
from tidelog import Admin, NewTopic
from tidelog.config.properties import read_properties
from tidelog.errors import KafkaError, TopicAuthorizationFailed
from tidelog.security.security_folder import BrokerAddress, FolderOptions, SecurityFolder
from tidelog.server.cluster_users import store_users

TOPICS_TOOL = "org.apache.kafka.tools.TopicCommand"


class SecureKafka(Kafka3):
    """A broker with the settings of the folder."""

    security: SecurityFolder

    def settings(self) -> dict[str, str]:
        return {
            **read_properties(self.security.broker_properties(1)),
            "zookeeper.connect": self.zookeeper.bootstrap,
            "log.dirs": str(self.data),
            **ONE_BROKER,
        }

    def answers(self) -> bool:
        try:
            with admin_of(self.security, "admin") as admin:
                return admin.describe_cluster().controller is not None
        except (KafkaError, OSError):
            return False


def admin_of(folder: SecurityFolder, user: str) -> Admin:
    """With the PEM files; Kafka's tool uses those of the store type under test."""
    settings = read_properties(folder.path / f"{user}.properties")
    return Admin(
        {
            **{name: value for name, value in settings.items() if not name.startswith("ssl.")},
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder.path / "ca.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder.path / f"{user}.pem"),
            "default.api.timeout.ms": "5000",
        }
    )


@pytest.fixture(scope="module", params=["PEM", "PKCS12"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    folder = tmp_path_factory.mktemp("secure")
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        kafka = SecureKafka(folder / "kafka", folder / "data", zookeeper)
        kafka.security = SecurityFolder(folder / "security")
        address = BrokerAddress(1, "localhost", kafka.port)
        kafka.security.create(FolderOptions([address], store_type=request.param))
        store_users(zookeeper.bootstrap, kafka.security.users())
        with kafka:
            yield kafka


def test_the_admin_may_create_topics_and_the_client_may_not(kafka: SecureKafka) -> None:
    with admin_of(kafka.security, "admin") as admin:
        admin.create_topics([NewTopic("ours", 1, 1)])
        assert "ours" in admin.list_topics()
    with admin_of(kafka.security, "client") as client, pytest.raises(TopicAuthorizationFailed):
        client.create_topics([NewTopic("theirs", 1, 1)])


def test_kafkas_own_tools_use_the_settings_of_the_admin(kafka: SecureKafka) -> None:
    tool = run_tool(
        "kafka3",
        TOPICS_TOOL,
        "--bootstrap-server",
        f"localhost:{kafka.port}",
        "--command-config",
        str(kafka.security.admin_properties),
        "--create",
        "--topic",
        "made-by-kafka",
    )
    assert tool.returncode == 0, tool.stdout + tool.stderr
