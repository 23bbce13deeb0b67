"""Secrets are planted wherever a broker, a client or a tool takes one; nothing that they write has one."""

from __future__ import annotations

import base64
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import BROKER_LOGGER, Client, surprises
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.config import ConfigError
from tidelog.errors import KafkaError
from tidelog.server.config.broker import BrokerConfig

KEY, STORE, JAAS, PLAIN, ENCODER, DIGEST, SCRAM, WRONG, TOKEN = (
    f"planted-{name}-Zq7Secret"
    for name in ("key", "store", "jaas", "plain", "encoder", "digest", "scram", "wrong", "token")
)
SECRETS = (KEY, STORE, JAAS, PLAIN, ENCODER, DIGEST, SCRAM, WRONG, TOKEN)
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def leaks(text: str | bytes) -> list[str]:
    """The secrets in a text: as they are, and in base64."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    found = [secret for secret in SECRETS if secret.encode() in data]
    return found + [secret for secret in SECRETS if base64.b64encode(secret.encode())[:-4] in data]


def run(*arguments: str) -> str:
    """What a tool prints, errors included."""
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with secrets in its file, which logs all it can."""
    folder = tmp_path_factory.mktemp("planted")
    properties = folder / "server.properties"
    properties.write_text(
        f"ssl.key.password={KEY}\nssl.keystore.password={STORE}\nssl.truststore.password={STORE}\n"
        f"listener.name.internal.ssl.key.password={KEY}\npassword.encoder.secret={ENCODER}\n"
        f"tidelog.zookeeper.digest=kafka:{DIGEST}\n"
        f'sasl.jaas.config={PLAIN_MODULE} required password="{JAAS}";\n'
        f'listener.name.sasl.plain.sasl.jaas.config={PLAIN_MODULE} required user_alice="{PLAIN}";\n'
        "tidelog.log.level=TRACE\n"
    )  # fmt: skip
    sasl, metrics = free_ports(2)
    settings = {
        "metrics.listener": f"127.0.0.1:{metrics}",
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "delegation.token.secret.key": TOKEN,
    }
    with Broker(folder, settings, properties=properties) as running:
        yield running


def sasl_address(broker: Broker) -> str:
    return broker.settings["listeners"].rpartition("//")[2]


def client_settings(broker: Broker, mechanism: str, user: str, password: str) -> dict[str, object]:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {
        "bootstrap.servers": sasl_address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        "default.api.timeout.ms": "5000",
        "request.timeout.ms": "4000",
    }


def test_the_log_and_the_metrics_have_no_secret(broker: Broker) -> None:
    with Client(broker.address) as client:
        client.create_topic("t")
        assert client.set_configs(BROKER_LOGGER, client.broker_id(), {"root": "TRACE"}) == 0
        for name in ("ssl.key.password", "listener.name.plaintext.ssl.keystore.password", "sasl.jaas.config"):
            client.set_configs(4, client.broker_id(), {name: f"{JAAS}"})
    with urllib.request.urlopen(f"http://{broker.settings['metrics.listener']}/metrics") as answer:
        assert leaks(answer.read()) == []
    assert leaks(broker.log()) == []
    assert "IncrementalAlterConfigs" in broker.log(), "the log has the requests"
    assert surprises(broker.log()) == []


def test_no_tool_prints_a_secret(broker: Broker, tmp_path: Path) -> None:
    bootstrap = ("--bootstrap-server", broker.bootstrap)
    file = tmp_path / "client.properties"
    file.write_text(
        f'security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nssl.key.password={KEY}\n'
        f'sasl.jaas.config={PLAIN_MODULE} required username="alice" password="{WRONG}";\n'
        "request.timeout.ms=2000\ndefault.api.timeout.ms=3000\n"
    )  # fmt: skip
    outputs = [
        run("configs", *bootstrap, "--describe", "--all", "--broker", "1001"),
        run("configs", *bootstrap, "--describe", "--all", "--broker", "1001", "--output", "json"),
        run("check", *bootstrap, "--broker-config", str(broker.properties), "--producer-config", str(file)),
        run("topics", *bootstrap, "--list", "--command-config", str(file)),
        run("configs", *bootstrap, "--alter", "--entity-type", "users", "--entity-name", "u", "--add-config",
            f"SCRAM-SHA-256=[password={SCRAM}]"),
        run("configs", *bootstrap, "--alter", "--entity-type", "users", "--entity-name", "u", "--add-config",
            f"SCRAM-SHA-256=[iterations=1,password={SCRAM}]"),
        run("configs", *bootstrap, "--describe", "--entity-type", "users", "--entity-name", "u"),
        run("console-producer", *bootstrap, "--topic", "t", "--producer-property", f"ssl.key.password={KEY}",
            "--producer-property", "acks=nonsense"),
    ]  # fmt: skip
    assert [leaks(output) for output in outputs] == [[]] * len(outputs)
    assert "ssl.key.password" in outputs[0], "the setting is described, its value is not"


def test_no_client_shows_its_password(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("clients", 1, 1)])
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        settings = client_settings(broker, mechanism, "alice", WRONG)
        shown: list[str] = []
        with Admin(settings) as admin:
            shown += [repr(admin), str(admin), repr(getattr(admin, "settings", ""))]
            with pytest.raises(KafkaError) as raised:
                admin.list_topics()
            shown += [str(raised.value), repr(raised.value), repr(raised.value.__context__)]
        with Producer(settings) as producer, Consumer({**settings, "group.id": "g"}) as consumer:
            shown += [repr(producer), repr(consumer)]
        assert [leaks(text) for text in shown] == [[]] * len(shown)
    assert leaks(broker.log()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl.key.password": KEY, "num.io.threads": "x"},
        {"sasl.jaas.config": f"no module {JAAS}", "listeners": "NOPE://127.0.0.1:0"},
        {"password.encoder.secret": ENCODER, "password.encoder.key.length": "100"},
        {"tidelog.zookeeper.digest": DIGEST, "zookeeper.connect": "127.0.0.1:1"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_refused_settings_do_not_repeat_a_secret(tmp_path: Path, settings: dict[str, str]) -> None:
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(file, {})
    assert leaks(str(raised.value)) == []
    printed = run("start", str(file), "--override", f"log.dirs={tmp_path}/data")
    assert "tidelog: " in printed
    assert leaks(printed) == []


def test_what_is_stored_has_no_password(broker: Broker) -> None:
    """Internal topics, as dump-log prints them, and the tree: a SCRAM user is a salted hash there."""
    run("configs", "--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "users",
        "--entity-name", "stored", "--add-config", f"SCRAM-SHA-512=[password={SCRAM}]")  # fmt: skip
    with Admin(client_settings(broker, "SCRAM-SHA-512", "stored", SCRAM)) as admin:
        assert "t" in admin.list_topics()
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("t", b"v")
    with Client(broker.address) as client:
        name = "listener.name.plaintext.ssl.key.password"
        assert client.set_configs(4, client.broker_id(), {name: KEY}) == 0
        assert client.config(4, client.broker_id(), name) is None
    trees = list(broker.data.glob("__tree.sqlite*"))
    assert [tree.stat().st_mode & 0o077 for tree in trees] == [0] * len(trees), (
        "only the owner reads the tree"
    )
    assert any(b"encryptedPassword:" in tree.read_bytes() for tree in trees)
    for file in broker.data.rglob("*"):
        if file.is_file():
            assert leaks(file.read_bytes()) == [], file
    for log in broker.data.glob("__*/*.log"):
        assert leaks(run("dump-log", "--files", str(log), "--print-data-log")) == []
