"""TLS, SCRAM and ACLs for the brokers and clients of tests.

TIDELOG_TEST_SECURITY=1 gives clusters of brokers listeners of SASL_SSL, SCRAM between them, and the ACL
authorizer; brokers and the user admin are super users. Tests log in as the user client, who has rules for
everything. Clients get their settings from here, by the address that they connect to: brokers of other tests
that have no security stay as they are.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wait import eventually
from tidelog.config.properties import read_properties
from tidelog.security.jaas import parse_jaas
from tidelog.security.security_folder import (
    ADMIN_USER,
    CLIENT_USER,
    LISTENER,
    LOGIN_MODULE,
    MECHANISM,
    PREFIX,
    BrokerAddress,
    FolderOptions,
    SecurityFolder,
)
from tidelog.server.cluster_users import store_users

if TYPE_CHECKING:
    from tidelog.clients.security import Security

PROTOCOL = LISTENER
FOLDER = "TIDELOG_TEST_SECURITY_FOLDER"
MOST_BROKERS = 6
NOT_OF_TESTS = ("listeners", "advertised.listeners", "broker.id")


def is_secured() -> bool:
    """Whether clusters of this run have security."""
    return bool(os.environ.get("TIDELOG_TEST_SECURITY"))


@functools.cache
def security_folder() -> SecurityFolder:
    """The keys and users of this process and of those that it starts."""
    given = os.environ.get(FOLDER)
    if given is None:
        kept = tempfile.TemporaryDirectory(prefix="tidelog-security-")
        atexit.register(kept.cleanup)
        os.environ[FOLDER] = given = kept.name
        brokers = [BrokerAddress(number, "127.0.0.1", 9092) for number in range(1, MOST_BROKERS + 1)]
        SecurityFolder(Path(given)).create(FolderOptions(brokers))
        (Path(given) / "addresses").mkdir()
    return SecurityFolder(Path(given))


def broker_settings(broker_id: int) -> dict[str, str]:
    """Everything but the address and the id."""
    found = read_properties(security_folder().broker_properties(broker_id))
    return {name: value for name, value in found.items() if name not in NOT_OF_TESTS}


def add_users(zookeeper: str) -> None:
    """What `tidelog security add-users` does before the first start of the brokers."""
    store_users(zookeeper, security_folder().users())


# --- which addresses have security


def remember(address: str) -> None:
    (security_folder().path / "addresses" / address).touch()


def forget(address: str) -> None:
    (security_folder().path / "addresses" / address).unlink(missing_ok=True)


def is_secured_address(bootstrap: object) -> bool:
    """Whether the first of these addresses is that of a broker with security."""
    folder = os.environ.get(FOLDER)
    if folder is None or not bootstrap:
        return False
    if isinstance(bootstrap, str):
        first = bootstrap.split(",")[0]
    elif isinstance(bootstrap, Iterable):
        first = str(next(iter(bootstrap)))
    else:
        return False
    return (Path(folder) / "addresses" / first.strip()).exists()


# --- the settings of clients


def properties(user: str = CLIENT_USER) -> dict[str, str]:
    """The settings of our clients and of Java clients, but for the addresses."""
    found = read_properties(security_folder().path / f"{user}.properties")
    return {name: value for name, value in found.items() if name != "bootstrap.servers"}


def password(user: str = CLIENT_USER) -> str:
    (module,) = parse_jaas(properties(user)["sasl.jaas.config"])
    return module.options["password"]


def password_of_broker() -> str:
    """The password with which brokers log in at each other."""
    (module,) = parse_jaas(broker_settings(1)[f"{PREFIX}.{MECHANISM.lower()}.sasl.jaas.config"])
    return module.options["password"]


def confluent_settings(user: str = CLIENT_USER) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password(user),
        "ssl.ca.location": str(security_folder().path / "ca.pem"),
    }


def kafka_python_settings(user: str = CLIENT_USER) -> dict[str, object]:
    return {
        "security_protocol": PROTOCOL,
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": user,
        "sasl_plain_password": password(user),
        "ssl_cafile": str(security_folder().path / "ca.pem"),
    }


def aiokafka_settings(user: str = CLIENT_USER) -> dict[str, object]:
    import ssl

    settings = kafka_python_settings(user)
    settings["ssl_context"] = ssl.create_default_context(cafile=str(settings.pop("ssl_cafile")))
    return settings


def jaas(user: str, password: str, more: str = "") -> dict[str, str]:
    """The setting that logs a user in. `more` are further options of the login module."""
    return {"sasl.jaas.config": f'{LOGIN_MODULE} required username="{user}" password="{password}"{more};'}


def security_of(settings: Mapping[str, object]) -> Security:
    """What clients with these settings use, for connections by hand."""
    from tidelog.clients.security import Security
    from tidelog.clients.settings import admin_settings

    return Security(admin_settings({**settings, "bootstrap.servers": "unused:1"}))


@functools.cache
def client_security(user: str = CLIENT_USER) -> Security:
    """For connections by hand."""
    return security_of(properties(user))


def forget_keys() -> None:
    """Let later connections by hand read the keys and certificates anew."""
    client_security.cache_clear()


def encrypted(plain: socket.socket, host: str, security: Security) -> socket.socket:
    """The same connection behind a TLS handshake."""
    context = security.context
    assert context is not None
    return context.wrap_socket(plain, server_hostname=host)


# --- rules


def allow_everything(bootstrap: str, addresses: Iterable[str], user: str = CLIENT_USER) -> None:
    """Rules that let a user do everything, and wait until each broker knows them."""
    from tests.support.raw import RawConnection
    from tidelog import Admin
    from tidelog.clients.admin import AclBinding, AclOperation, AclResourceType

    kinds = (
        AclResourceType.TOPIC,
        AclResourceType.GROUP,
        AclResourceType.TRANSACTIONAL_ID,
        AclResourceType.CLUSTER,
    )
    rules = [
        AclBinding(
            resource_type=kind,
            name="kafka-cluster" if kind is AclResourceType.CLUSTER else "*",
            principal=f"User:{user}",
            operation=AclOperation.ALL,
        )
        for kind in kinds
    ]
    with Admin({"bootstrap.servers": bootstrap, **properties(ADMIN_USER)}) as admin:
        admin.create_acls(rules)
    any_name = dict.fromkeys(("resourceNameFilter", "principalFilter", "hostFilter"))
    any_kind = dict.fromkeys(("resourceTypeFilter", "patternTypeFilter", "operation", "permissionType"), 1)

    def known(address: str) -> bool:
        with RawConnection(address) as connection:
            answer = connection.call_json("DescribeAcls", 3, {**any_name, **any_kind})
        found: Mapping[str, object] = answer
        resources = found["resources"]
        return found["errorCode"] == 0 and isinstance(resources, list) and len(resources) >= len(kinds)

    for address in addresses:
        eventually(lambda address=address: known(address), f"{address} knows the rules", 30.0)
