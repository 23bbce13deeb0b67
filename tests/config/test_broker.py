"""A broker's settings: what is declared, what a file and the command line give, what is refused at start."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from tidelog.config.definition import ConfigKey
from tidelog.config.values import ConfigError, ConfigType, Password
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import broker_definition, cluster_settings, security_settings
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.config.topic import TopicConfigs

KAFKA_4_FILE = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
"""


def refusal(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(None, {name.replace("_", "."): value for name, value in settings.items()})
    return str(caught.value)


def test_without_settings_it_listens_on_the_loopback_and_writes_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = BrokerConfig.load()
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.advertised_endpoints == config.endpoints
    assert config.data_dirs == (str(tmp_path / "tidelog-data"),)
    assert config.broker_id == -1
    assert config.warnings == []


def test_a_file_for_kraft_starts_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(KAFKA_4_FILE)
    config = BrokerConfig.load(path)
    assert config.broker_id == 1
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://localhost:9092"]
    assert [str(endpoint) for endpoint in config.advertised_endpoints] == ["PLAINTEXT://localhost:9092"]
    assert config.notes == [
        "listener CONTROLLER://localhost:9093 is left out: it is named in controller.listener.names"
    ]
    assert [warning.split()[0] for warning in config.warnings] == [
        "controller.quorum.bootstrap.servers",
        "num.network.threads",
        "process.roles",
    ]


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nnum.io.threads=2\n")
    config = BrokerConfig.load(path, {"num.partitions": "5"})
    assert (config.num_partitions, config.num_io_threads) == (5, 2)


def test_every_setting_can_be_given_at_its_default() -> None:
    definition = broker_definition()
    refused = {"zookeeper.connect", "log.dir", "listeners"}
    static = {n: k.default for n, k in definition.items() if k.default is not None and n not in refused}
    static |= {name: "1" for name in static if name.endswith((".replication.factor", ".min.isr"))}
    config = BrokerConfig(static)
    ignored = [name for name in static if not definition[name].served or name in cluster_settings()]
    assert len(config.warnings) == len(ignored)


def test_unknown_settings_warn_with_what_was_probably_meant() -> None:
    config = BrokerConfig.load(None, {"nun.io.threads": "5", "something.else": "1"})
    assert config.warnings == [
        "nun.io.threads is not a setting and is ignored; did you mean num.io.threads?",
        "something.else is not a setting and is ignored",
    ]


def test_a_setting_that_changes_nothing_says_why() -> None:
    config = BrokerConfig.load(
        None, {"socket.connection.setup.timeout.max.ms": "5", "metrics.num.samples": "1"}
    )
    assert config.warnings == [
        "metrics.num.samples changes nothing: metrics are read over HTTP at metrics.listener, and nothing is "
        "pushed",
        "socket.connection.setup.timeout.max.ms changes nothing: every attempt to connect to a broker has "
        "socket.connection.setup.timeout.ms",
    ]


def test_a_negative_retention_that_means_for_ever_says_so() -> None:
    config = BrokerConfig.load(None, {"log.retention.ms": "-7", "log.retention.hours": "-1"})
    assert config.log_retention_ms == -1
    assert config.warnings == ["log.retention.ms=-7 keeps records for ever, as -1 does: write -1"]


def test_a_number_that_is_too_large_is_told_the_bound_it_passed() -> None:
    assert refusal(num_io_threads="3000000000").endswith("a whole number of at most 2147483647: at least 1")
    assert "of at least -9223372036854775808" in refusal(log_retention_ms="-9999999999999999999")


def test_bad_values_are_refused_with_name_value_and_what_is_allowed() -> None:
    assert refusal(num_io_threads="0") == "num.io.threads=0: expected at least 1"
    assert (
        refusal(log_cleanup_policy="shred") == "log.cleanup.policy=shred: expected a list of compact, delete"
    )
    assert refusal(replica_fetch_max_bytes="x").startswith(
        "replica.fetch.max.bytes=x: expected a whole number"
    )
    assert refusal(log_roll_ms="0") == "log.roll.ms=0: expected at least 1"
    assert refusal(log_retention_ms="0").startswith("log.retention.ms=0: expected")
    assert refusal(queued_max_request_bytes="5").startswith("queued.max.request.bytes=5: expected at least")
    assert refusal(max_connections_per_ip="0").startswith("max.connections.per.ip=0: nobody")
    assert refusal(log_dirs="/a,/a/").startswith("log.dirs=/a,/a: a folder occurs twice")


def test_a_bad_listener_setting_is_refused_under_its_own_name() -> None:
    name = "listener.name.plaintext.max.connections"
    with pytest.raises(ConfigError, match=rf"^{name}=-1: expected at least 0"):
        BrokerConfig.load(None, {name: "-1"})


def test_settings_of_a_cluster_change_nothing_for_a_broker_alone() -> None:
    config = BrokerConfig.load(None, {"zookeeper.connect": "", "controlled.shutdown.max.retries": "5"})
    assert config.cluster is None
    assert config.warnings == [
        "controlled.shutdown.max.retries changes nothing: a broker without zookeeper.connect is alone"
    ]


def test_node_id_and_broker_id_are_one() -> None:
    assert BrokerConfig.load(None, {"node.id": "7"}).broker_id == 7
    assert BrokerConfig.load(None, {"broker.id": "7"}).broker_id == 7
    assert "node.id=7" in refusal(node_id="7", broker_id="8")


def test_a_generated_id_is_shown_as_if_it_had_been_given() -> None:
    config = BrokerConfig.load()
    config.assume_broker_id(1001)
    assert config.broker_id == 1001
    (entry,) = config.describe(["node.id"])
    assert (entry.value, int(entry.source)) == ("1001", 4)


def test_internal_topics_get_what_one_broker_can_give() -> None:
    config = BrokerConfig.load()
    assert config.offsets_topic_replication_factor == config.transaction_state_log_min_isr == 1
    (note,) = config.notes
    assert "offsets.topic.replication.factor" in note
    assert refusal(offsets_topic_replication_factor="3").endswith("has to be 1, as there is one broker")
    assert refusal(transaction_state_log_min_isr="2").endswith("has to be 1, as there is one broker")


def test_retention_is_the_finest_of_the_given() -> None:
    assert BrokerConfig.load(None, {"log.retention.hours": "2"}).log_retention_ms == 7_200_000
    given = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    assert BrokerConfig.load(None, given).log_retention_ms == 180_000
    assert BrokerConfig.load(None, {**given, "log.retention.ms": "4"}).log_retention_ms == 4
    for_ever = BrokerConfig.load(None, {"log.retention.hours": "-1"})
    assert for_ever.log_retention_ms == TopicConfigs(for_ever).effective({})["retention.ms"] == -1


def test_a_listener_has_limits_of_its_own() -> None:
    config = BrokerConfig.load(
        None, {"listener.name.plaintext.max.connections": "5", "max.connections": "50"}
    )
    assert config.warnings == []
    assert config.listener_limit("PLAINTEXT", "max.connections") == 5
    assert config.listener_limit("PLAINTEXT", "max.connection.creation.rate") is None
    assert config["listener.name.plaintext.max.connections"] == 5
    assert config["listener.name.other.max.connections"] == 50
    other = BrokerConfig.load(None, {"listener.name.plaintext.num.partitions": "5"})
    assert "cannot be set for one listener" in other.warnings[0]


def test_hosts_have_limits_of_their_own() -> None:
    config = BrokerConfig.load(None, {"max.connections.per.ip.overrides": "127.0.0.1:5, ::1:7"})
    assert config.connections_per_ip == {"127.0.0.1": 5, "::1": 7}


def test_an_unknown_name_has_no_value() -> None:
    with pytest.raises(KeyError):
        BrokerConfig.load()["no.such"]


PYTHON_TYPES = {
    ConfigType.BOOLEAN: bool,
    ConfigType.INT: int,
    ConfigType.SHORT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple[str, ...],
    ConfigType.STRING: str,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: Password,
}
MADE_OF_SEVERAL = {
    "cluster",
    "data_dirs",
    "endpoints",
    "advertised_endpoints",
    "inter_broker_listener",
    "connections_per_ip",
}


def attribute_type(key: ConfigKey) -> object:
    stands_in = key.name.endswith(".ms") and key.synonyms
    return PYTHON_TYPES[key.type] | None if key.default is None and not stands_in else PYTHON_TYPES[key.type]


def test_every_served_setting_is_a_typed_attribute() -> None:
    hints = get_type_hints(BrokerConfig, localns={"ClusterConfig": ClusterConfig})
    hints = {name: hint for name, hint in hints.items() if name not in MADE_OF_SEVERAL}
    others = cluster_settings() | security_settings()
    own = [k for k in broker_definition().values() if k.served and k.name not in others]
    served = {k.attribute: attribute_type(k) for k in own}
    assert hints.items() ^ served.items() == set(), "declare it with its type in BrokerConfig"
    config = BrokerConfig.load()
    assert [name for name in hints if not hasattr(config, name)] == []
