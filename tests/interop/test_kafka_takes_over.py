"""Apache Kafka reads what we wrote: its tools our files, its broker our whole folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.interop.clients import CODECS, Confluent, Message
from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.topics import topic_configs
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.cli.main import main

pytestmark = pytest.mark.kafka

MESSAGES = [
    Message(b"k%d" % i, b"value %d" % i, (("n", b"%d" % i),), 1_760_000_000_000 + i) for i in range(500)
]


def write_everything(broker: Broker) -> dict[str, list[Message]]:
    """Topics of every codec, one of many segments, one with settings; what each of them holds."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics(
            [NewTopic("rolled", 1, configs={"segment.bytes": "1048576", "index.interval.bytes": "100"})]
        )
        admin.create_topics(
            [NewTopic("settings", 3, configs={"cleanup.policy": "compact", "retention.ms": "-1"})]
        )
    written = {f"codec-{codec}": MESSAGES for codec in CODECS}
    for codec in CODECS:
        Confluent().produce(broker.bootstrap, f"codec-{codec}", MESSAGES, codec=codec)
    large = [Message(b"%d" % i, bytes([i]) * 200_000, (), 1_760_000_000_000 + i) for i in range(20)]
    for message in large:
        Confluent().produce(broker.bootstrap, "rolled", [message], idempotent=True)
    written["rolled"] = large
    return written


def listed(admin: Admin) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in admin.list_topics(list_internal=True).items()}


def comparable(messages: list[Message]) -> list[object]:
    return [(message.content(), message.timestamp) for message in messages]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_kafka_serves_our_folder_after_the_tree_is_exported(tmp_path: Path, killed: bool) -> None:
    with Broker(tmp_path / "ours", {"broker.id": "1"}) as broker:
        written = write_everything(broker)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            ids = listed(admin)
        if killed:
            broker.kill()
        else:
            broker.terminate()
        with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
            arguments = ["tree", "export", str(broker.data), "--zookeeper", zookeeper.bootstrap]
            exported = CliRunner().invoke(main, arguments)
            assert exported.exit_code == 0, exported.output
            with Kafka3(tmp_path / "kafka", broker.data, zookeeper, {"broker.id": "1"}) as kafka:
                with Admin(bootstrap_servers=kafka.bootstrap) as admin:
                    eventually(lambda: listed(admin) == ids, "Kafka knows every topic by its id", timeout=30)
                    settings = topic_configs(admin, "settings")
                    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("compact", "-1")
                for topic, messages in written.items():
                    got = Confluent().consume(kafka.bootstrap, topic, len(messages))
                    assert comparable(got) == comparable(messages), topic
                Confluent().produce(kafka.bootstrap, "rolled", MESSAGES[:10])
                more = Confluent().consume(kafka.bootstrap, "rolled", 10, offset=20)
                assert comparable(more) == comparable(MESSAGES[:10])


def test_kafkas_dump_tool_finds_nothing_wrong_in_our_files(tmp_path: Path) -> None:
    with Broker(tmp_path / "ours") as broker:
        write_everything(broker)
        broker.terminate()
    kinds = ("*.log", "*.index", "*.timeindex", "*.snapshot")
    files = [str(file) for kind in kinds for file in sorted(broker.data.glob(f"*/{kind}"))]
    assert len([file for file in files if file.endswith(".log")]) > 8
    arguments = ("--deep-iteration", "--files", ",".join(files))
    theirs = run_tool("kafka4", "org.apache.kafka.tools.DumpLogSegments", *arguments)
    assert theirs.returncode == 0, theirs.stderr
    assert "isvalid: false" not in theirs.stdout
    assert "invalid bytes" not in theirs.stdout
    for complaint in ("Mismatches", "mismatch", "out of order", "not found"):
        assert complaint not in theirs.stderr
    assert CliRunner().invoke(main, ["dump-log", *arguments]).stdout == theirs.stdout
