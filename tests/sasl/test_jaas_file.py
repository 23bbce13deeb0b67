"""JAAS files: which sections and modules count, what is refused, and logins by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sasl_broker import PLAIN_MODULE
from tidelog import Admin
from tidelog.config.values import ConfigError
from tidelog.security.jaas import JaasError, parse_jaas
from tidelog.security.jaas_file import jaas_of_file, jaas_path, parse_jaas_file
from tidelog.testing import Broker

FILE = f"""
/* Brokers, clients,
   and ZooKeeper. */
KafkaServer {{
    {PLAIN_MODULE} required
    username="admin" password="admin-{{secret}}" user_alice="alice-secret";
    com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;
}};
inner.KafkaServer {{
    {PLAIN_MODULE} required user_iris="iris-secret";
}};
KafkaClient {{
    {PLAIN_MODULE} required username="alice" password="alice-secret";
}};
Client {{
    org.apache.zookeeper.server.auth.DigestLoginModule required username="zoo" password="zoo-secret";
}};
Empty {{}};
"""


@pytest.fixture
def jaas_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "jaas.conf"
    path.write_text(FILE)
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1g -Djava.security.auth.login.config={path} -Dother=1")
    return path


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ("", None),
        ("-Xmx1g -Dxjava.security.auth.login.config=/other", None),
        ("-Djava.security.auth.login.config=/etc/jaas.conf -Xmx1g", "/etc/jaas.conf"),
        ('-Xmx1g -Djava.security.auth.login.config=="/etc/our jaas.conf"', "/etc/our jaas.conf"),
    ],
)
def test_the_path_is_an_option_of_the_jvm(options: str, path: str | None) -> None:
    assert jaas_path(options) == path


def test_the_sections_of_a_file() -> None:
    sections = parse_jaas_file(FILE)
    assert [len(modules) for modules in sections.values()] == [2, 1, 1, 1, 0]
    assert sections["KafkaServer"][0].options["password"] == "admin-{secret}"


def test_a_module_is_the_same_after_its_text() -> None:
    (module,) = parse_jaas(rf'{PLAIN_MODULE} required password="a\"b\\c\nd;=";')
    assert parse_jaas(module.text()) == [module]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("KafkaServer", "opening brace"),
        ("KafkaServer {", "no end"),
        ("KafkaServer {}", "does not end with a brace and a semicolon"),
        (f"KafkaServer {{ {PLAIN_MODULE} required }};", "semicolon"),
        (f"KafkaServer {{ {PLAIN_MODULE}; }};", "control flag"),
        (f'KafkaServer {{ {PLAIN_MODULE} required password="${{secret}}"; }};', "properties of a JVM"),
        ("A {}; A {};", "two sections A"),
    ],
)
def test_files_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(JaasError, match=problem) as refused:
        parse_jaas_file(text)
    assert "secret" not in str(refused.value)


def test_the_section_of_a_listener_counts_before_that_of_all(jaas_file: Path) -> None:
    assert jaas_of_file(("inner.KafkaServer", "KafkaServer"), "PLAIN") == (
        f'{PLAIN_MODULE} required user_iris="iris-secret";'
    )
    assert 'user_alice="alice-secret"' in (jaas_of_file(("outer.KafkaServer", "KafkaServer"), "PLAIN") or "")
    assert jaas_of_file(("KafkaServer",), "SCRAM-SHA-256") is None
    jaas_file.write_text("KafkaServer { com.sun.security.auth.module.JndiLoginModule required; };")
    with pytest.raises(ConfigError, match="JndiLoginModule is not allowed"):
        jaas_of_file(("KafkaServer",), "PLAIN")
    jaas_file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        jaas_of_file(("KafkaServer",), "PLAIN")


def test_a_broker_and_a_client_log_in_by_the_file(jaas_file: Path) -> None:
    settings = {
        "listeners": "OUTER://127.0.0.1:0",
        "listener.security.protocol.map": "OUTER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "OUTER",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    with Broker(settings) as broker:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        with Admin({"bootstrap.servers": broker.address_of("OUTER"), **login}) as admin:
            assert admin.describe_cluster().nodes
