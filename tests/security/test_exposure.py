"""What is open is said: at the start of a broker, on its first screen, and by `tidelog check`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.security.exposure import exposures, holds_secrets, is_loopback, known_passwords, open_addresses
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.open_addresses import open_address_lines

MAP = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,OUT:SSL,IN:PLAINTEXT"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("broker.example", False),
        ("fe80::1%eth0", False),
    ],
)
def test_addresses_of_this_machine_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:9092,PLAINTEXT2://[::1]:9093"}, []),
        ({"listeners": "PLAINTEXT://:9092"}, ["listener PLAINTEXT://:9092"]),
        ({"listeners": "IN://127.0.0.1:1, OUT://[::]:2"}, ["listener OUT://[::]:2"]),
        ({"listeners": "OUT://10.0.0.1:2", "ssl.client.auth": "required"}, []),
        ({"listeners": "OUT://10.0.0.1:2", "ssl.client.auth": "requested"}, ["listener OUT://10.0.0.1:2"]),
        ({"listeners": "OUT://h:2", "listener.name.out.ssl.client.auth": "required"}, []),
        ({"listeners": "SASL_SSL://0.0.0.0:9092", "sasl.enabled.mechanisms": "PLAIN"}, []),
        ({"listeners": "SASL_PLAINTEXT://0.0.0.0:1", "sasl.enabled.mechanisms": "PLAIN"}, ["listener SASL_PLAINTEXT://0.0.0.0:1"]),
        ({"console.listener": "127.0.0.1:8080"}, []),
        ({"console.listener": "0.0.0.0:8080"}, ["console.listener=0.0.0.0:8080"]),
        ({"metrics.listener": ":9100"}, []),
        ({"metrics.listener": "0.0.0.0:9100"}, ["metrics.listener=0.0.0.0:9100"]),
        ({"metrics.listener": "[::]:9100"}, ["metrics.listener=[::]:9100"]),
        ({"metrics.listener": "https://127.0.0.1:9100"}, []),
        ({"metrics.listener": "https://0.0.0.0:9100"}, ["metrics.listener=https://0.0.0.0:9100"]),
        ({"metrics.listener": "https://[::]:91", "listener.name.metrics.ssl.client.auth": "required"}, []),
        ({"metrics.listener": "[::]:91", "ssl.client.auth": "required"}, ["metrics.listener=[::]:91"]),
    ],
)  # fmt: skip
def test_addresses_that_others_reach_without_a_login(settings: dict[str, str], expected: list[str]) -> None:
    found = open_addresses({"listener.security.protocol.map": MAP, **settings})
    assert [exposure.what for exposure in found] == expected


def test_passwords_over_a_connection_that_is_not_encrypted_are_named() -> None:
    (found,) = open_addresses(
        {"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "plain,SCRAM-SHA-256"}
    )
    assert found.text.startswith("passwords")
    (found,) = open_addresses(
        {"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    )
    assert found.text.startswith("records")


OAUTH = {"listeners": "IN://0.0.0.0:1", "listener.name.in.sasl.enabled.mechanisms": "OAUTHBEARER"}
UNSECURED = {"tidelog.sasl.oauthbearer.unsecured.enable": "true"}
KEYS = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE = {"sasl.oauthbearer.expected.audience": "kafka"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (UNSECURED, ["anybody can make a token that logs in as any user"]),
        ({**UNSECURED, "listeners": "IN://127.0.0.1:1"}, []),
        ({**UNSECURED, KEYS: "https://keys", **AUDIENCE}, []),
        ({KEYS: "https://keys", **AUDIENCE}, []),
        ({f"listener.name.in.{KEYS}": "http://keys", **AUDIENCE}, ["the keys of tokens can be replaced"]),
        ({KEYS: "https://keys"}, ["a token that the provider made for another service logs in"]),
    ],
)  # fmt: skip
def test_tokens_that_anybody_can_make(settings: dict[str, str], expected: list[str]) -> None:
    found = list(open_addresses({"listener.security.protocol.map": "IN:SASL_SSL", **OAUTH, **settings}))
    assert [exposure.text.partition(" on their way")[0] for exposure in found] == expected
    assert [exposure.is_address for exposure in found] == [text.startswith("anybody") for text in expected]


def test_a_console_with_a_login_is_open_to_listeners_on_the_way_alone() -> None:
    (found,) = open_addresses({"console.listener": "0.0.0.0:8080", "console.access.config": "access.toml"})
    assert found.text == "passwords and records can be read on the way"
    assert not found.is_address


def test_rights_that_nobody_limits() -> None:
    assert [found.what for found in exposures({})] == ["no authorizer"]
    acls = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    assert list(exposures(acls)) == []
    opened = {**acls, "allow.everyone.if.no.acl.found": "true", "super.users": "User:ANONYMOUS;User:admin"}
    assert [found.what for found in exposures(opened)] == [
        "allow.everyone.if.no.acl.found=true",
        "super.users",
        "super.users",
    ]


def test_passwords_of_documentation_are_named_and_not_repeated() -> None:
    settings = {
        "ssl.keystore.password": "changeit",
        "ssl.key.password": "x9!kLw",
        "listener.name.a.plain.sasl.jaas.config": 'Plain required password="admin-secret" user_b="q";',
        "sasl.jaas.config": 'Scram required username="admin" password="long and random";',
        "some.other": "changeit",
    }
    found = list(known_passwords(settings))
    assert [exposure.what for exposure in found] == [
        "listener.name.a.plain.sasl.jaas.config",
        "ssl.keystore.password",
    ]
    assert not [
        exposure for exposure in found if "changeit" in str(exposure) or "admin-secret" in str(exposure)
    ]
    assert holds_secrets(settings)
    assert not holds_secrets({"listeners": "x", "ssl.key.password": ""})


def test_without_settings_nothing_is_open() -> None:
    config = BrokerConfig.load(None, {})
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.metrics_listener is None
    assert open_address_lines(config) == []


@pytest.mark.parametrize("setting", ["metrics.listener", "console.listener"])
def test_an_address_without_a_host_is_for_this_machine_alone(setting: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Broker(tmp_path, {setting: f":{port}"}):
        with socket.create_connection(("127.0.0.1", port), 10):
            pass
        with pytest.raises(ConnectionRefusedError):  # a socket of all addresses has this one, too
            socket.create_connection(("127.0.0.2", port), 10).close()


def test_an_open_broker_says_so_in_one_line_and_on_its_first_screen(tmp_path: Path) -> None:
    client, metrics = free_ports(2)
    settings = {
        "listeners": f"PLAINTEXT://0.0.0.0:{client}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "metrics.listener": f"0.0.0.0:{metrics}",
    }
    with Broker(tmp_path, settings) as broker:
        eventually(lambda: "Ctrl-C stops it" in broker.log(), "the first screen")
        lines = [line for line in broker.log().splitlines() if "is open to other machines" in line]
    logged = [line for line in lines if "level=warn" in line]
    shown = [line for line in lines if line.startswith("  warning")]
    assert len(logged) == len(shown) == 2
    assert "nobody has to log in, and nothing is encrypted" in logged[0]
    assert "metrics.listener" in logged[1]


def check(*arguments: str) -> str:
    return CliRunner().invoke(main, ["check", *arguments]).output


def test_check_lists_what_the_files_leave_open(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://:9092\nssl.key.password=changeit\n")
    file.chmod(0o644)
    opened = [
        line
        for line in check("--clients-only", "--broker-config", str(file)).splitlines()
        if " open " in line
    ]
    assert [line.partition(" open ")[2].split(":")[0].strip() for line in opened] == [
        "listener PLAINTEXT",
        "no authorizer",
        "ssl.key.password",
        f"{file} has mode 0644",
    ]
    file.chmod(0o600)
    file.write_text("security.protocol=SASL_SSL\nssl.key.password=Qo9-unknown\n")
    assert " open " not in check("--clients-only", "--producer-config", str(file))


def test_check_lists_what_the_brokers_leave_open(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,OUT://0.0.0.0:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:0,OUT://localhost:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT",
    }
    with Broker(tmp_path, settings) as broker:
        output = check("--bootstrap-server", broker.bootstrap)
        found = json.loads(check("--bootstrap-server", broker.bootstrap, "--output", "json"))
    opened = [each for each in found if each["status"] == "open"]
    assert [each["name"] for each in opened] == [f"listener OUT://0.0.0.0:{port}", "no authorizer"]
    assert opened[0]["where"] == ["broker 1001"]
    assert "whoever can connect may do everything (broker 1001)" in output
