"""The pytest plugin in runs of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.wait import patience
from tidelog.testing.plugin import fresh_name

# Other plugins that the environment may have, and whose imports take longer than most of these runs.
NOT_NEEDED = ("cacheprovider", "anyio", "hypothesispytest", "schemathesis", "xdist", "xdist.looponfail")


def run_pytest(
    folder: Path, test: str, *arguments: str, conftest: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "test_theirs.py").write_text(test)
    if conftest:
        (folder / "conftest.py").write_text(conftest)
    without = [word for name in NOT_NEEDED for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *without, *arguments, "test_theirs.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience(120)
    )


def test_the_fixtures_are_there_without_an_import(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
import confluent_kafka, confluent_kafka.admin, pytest

brokers = set()

def partitions(broker, topic):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return len(admin.list_topics(timeout=10).topics[topic].partitions)

@pytest.mark.parametrize("number", [1, 2])
def test_each_has_its_topic(tidelog_broker, tidelog_topic, number):
    brokers.add(tidelog_broker)
    assert tidelog_topic.startswith(f"test_each_has_its_topic-{number}-")
    assert partitions(tidelog_broker, tidelog_topic) == 1
    producer = confluent_kafka.Producer({"bootstrap.servers": tidelog_broker.bootstrap_servers})
    producer.produce(tidelog_topic, b"x")
    assert producer.flush(30) == 0

@pytest.mark.tidelog_topic(2)
def test_made_with_so_many_partitions(tidelog_broker, tidelog_topic):
    assert partitions(tidelog_broker, tidelog_topic) == 2

@pytest.mark.tidelog_topic(partitions=3, configs={"cleanup.policy": "compact"})
def test_made_otherwise(tidelog_broker, tidelog_topic):
    brokers.add(tidelog_broker)
    assert partitions(tidelog_broker, tidelog_topic) == 3
    assert len(brokers) == 1
""",
        "--strict-markers",
        "-W",
        "error",
    )
    assert run.returncode == 0, run.stdout
    assert "4 passed" in run.stdout


def test_a_producer_and_a_consumer_of_the_tests_topic_are_fixtures(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
import pytest

def test_one_record(tidelog_producer, tidelog_consumer, tidelog_topic):
    tidelog_producer.send_and_wait(tidelog_topic, b"one apple")
    (record,) = tidelog_consumer.poll(30)
    assert (record.topic, record.value) == (tidelog_topic, b"one apple")

@pytest.mark.tidelog_producer(value_serializer=str.encode, acks=1)
@pytest.mark.tidelog_consumer(group_id="billing", value_deserializer=bytes.decode)
def test_settings(tidelog_broker, tidelog_producer, tidelog_consumer, tidelog_topic):
    tidelog_producer.send_and_wait(tidelog_topic, "text")
    (record,) = tidelog_consumer.poll(30)
    tidelog_consumer.commit()
    assert (record.value, tidelog_consumer.group_metadata().group_id) == ("text", "billing")
    assert [each.value for each in tidelog_broker.records(tidelog_topic)] == [b"text"]
""",
        "--strict-markers",
        "-W",
        "error",
    )
    assert run.returncode == 0, run.stdout
    assert "2 passed" in run.stdout


def test_settings_come_from_a_fixture(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
def test_it(tidelog_broker):
    assert tidelog_broker.settings["num.partitions"] == "5"
""",
        conftest="""
import pytest

@pytest.fixture(scope="session")
def tidelog_broker_settings():
    return {"num.partitions": 5}
""",
    )
    assert run.returncode == 0, run.stdout


def test_a_failing_test_shows_what_the_broker_logged_meanwhile(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
import logging

def test_before(tidelog_broker):
    logging.getLogger("tidelog.server").info("said in the test before")

def test_it(tidelog_broker):
    logging.getLogger("tidelog.server").info("said in this test")
    assert False

def test_without_one():
    assert False
""",
    )
    assert run.returncode == 1
    assert run.stdout.count("Log of the broker tidelog_broker (call)") == 1
    assert 'msg="said in this test"' in run.stdout
    assert "said in the test before" not in run.stdout


def test_a_failing_test_shows_it_also_where_it_uses_the_broker_by_way_of_others(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
import logging
import pytest
from tidelog.testing import Broker

@pytest.fixture
def application(tidelog_broker):
    return tidelog_broker.bootstrap_servers

@pytest.fixture(scope="session")
def other_broker():
    with Broker() as broker:
        yield broker

@pytest.fixture
def broken(other_broker):
    logging.getLogger("tidelog.server").info("said before a fixture failed")
    assert False

def test_both(other_broker, application):
    pass

def test_call(application, tidelog_topic):
    logging.getLogger("tidelog.server").info("said in the call")
    assert False

def test_setup(broken):
    pass
""",
    )
    assert run.returncode == 1
    assert "1 failed, 1 passed, 1 error" in run.stdout
    call, setup = run.stdout.index("tidelog_broker (call)"), run.stdout.index("other_broker (setup)")
    assert run.stdout.count("Log of the broker") == 2
    assert call < run.stdout.index('msg="said in the call"')
    assert setup < run.stdout.index('msg="said before a fixture failed"')


def test_a_run_that_uses_none_of_it_does_not_pay_for_it(tmp_path: Path) -> None:
    run = run_pytest(
        tmp_path,
        """
import sys

def test_it():
    ours = sorted(name for name in sys.modules if name.partition(".")[0] == "tidelog")
    assert ours == ["tidelog", "tidelog.testing", "tidelog.testing.plugin"]
""",
        "-p",
        "no:xdist",
    )
    assert run.returncode == 0, run.stdout


def test_a_topics_name_is_made_of_the_tests_name() -> None:
    name = fresh_name("test_it[a b/ü-" + "x" * 300 + "]")
    assert name.startswith("test_it-a-b-")
    assert len(name) <= 249
    assert fresh_name("test") != fresh_name("test")
