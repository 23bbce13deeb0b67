"""A broker in this process whose listeners authenticate their clients."""

from __future__ import annotations

import re
import urllib.request

from tests.support.ports import free_port
from tests.support.sasl_walks import ITERATIONS, MAX_RECEIVE, PLAIN_USERS, REAUTH_MS, SCRAM_USERS
from tidelog import Admin
from tidelog.clients.admin.users import ScramMechanism, UserScramCredentialUpsertion
from tidelog.testing import Broker

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = " ".join(f'user_{user}="{password}"' for user, password in PLAIN_USERS.items())

SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,REAUTH://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,REAUTH:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {USERS};",
    "listener.name.reauth.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.reauth.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {USERS};",
    "listener.name.reauth.connections.max.reauth.ms": REAUTH_MS,
    "connection.failed.authentication.delay.ms": 20,
    "sasl.server.max.receive.size": MAX_RECEIVE,
    "tidelog.sasl.oauthbearer.unsecured.enable": True,
}


def sasl_broker(**settings: object) -> Broker:
    """Started, with the users of the walks; the caller closes it."""
    broker = Broker(SETTINGS | settings)
    broker.start()
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(user, password, mechanism, ITERATIONS)
                for user, password in SCRAM_USERS.items()
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            ]
        )
    return broker


def sasl_ssl_broker(keys: str, trusted: str) -> Broker:
    """Started, with the listeners SASL (SASL_SSL) and CERTIFICATE (a certificate is the login), both of PEM
    files; the caller closes it."""
    return sasl_broker(
        **{
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL://localhost:0,CERTIFICATE://localhost:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,CERTIFICATE:SSL",
            "listener.name.certificate.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keys,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trusted,
        }
    )


def metric(broker: Broker, name: str, listener: str) -> float:
    """The value of a socket server metric of a listener; the broker needs metrics.listener."""
    url = f"http://{broker.settings['metrics.listener']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    pattern = rf'kafka_server_socket_server_metrics_{name}{{[^}}]*listener="{listener}"[^}}]*}} (\S+)'
    found = re.search(pattern, text)
    assert found is not None, name
    return float(found[1])


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def listeners(broker: Broker) -> dict[str, str]:
    """The addresses of the listeners that the walks name."""
    return {"all": broker.address_of("SASL"), "reauth": broker.address_of("REAUTH")}
