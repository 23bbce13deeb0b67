"""A broker in this process with a listener of SASL_SSL and stores of keytool, and settings of clients."""

from __future__ import annotations

from pathlib import Path

from tests.data.key_stores.record import PASSWORD
from tidelog import Admin
from tidelog.clients.admin import ScramMechanism, UserScramCredentialUpsertion
from tidelog.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from tidelog.testing import Broker

STORES = Path(__file__).parent.parent / "data" / "key_stores"
SECRET = "alice's word"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def secured_broker(**settings: object) -> Broker:
    """Started, with the user alice and the secured listener LOGIN; the caller closes it."""
    prefix = "listener.name.login."
    broker = Broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL",
            "ssl.keystore.location": str(STORES / "server.p12"),
            "ssl.keystore.password": PASSWORD,
            "ssl.keystore.type": "PKCS12",
            f"{prefix}sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{SECRET}";',
            "tidelog.sasl.oauthbearer.unsecured.enable": True,
            "connection.failed.authentication.delay.ms": 20,
        }
        | settings
    )
    broker.start()
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", SECRET, mechanism)])
    return broker


def client_file(mechanism: str, secret: str = SECRET) -> dict[str, str]:
    """The settings of a Java client, by Kafka's names."""
    user = f'required username="alice" password="{secret}";'
    lines = {
        "PLAIN": f"{PLAIN_MODULE} {user}",
        "OAUTHBEARER": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="alice";',
    }
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": lines.get(mechanism, f"{SCRAM_MODULE} {user}"),
        "ssl.truststore.location": str(STORES / "trust.jks"),
        "ssl.truststore.password": PASSWORD,
    }
