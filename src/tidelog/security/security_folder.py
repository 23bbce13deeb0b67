"""SecurityFolder: the keys, certificates, users and settings of a cluster with TLS, SCRAM and ACLs.

| file | content |
|---|---|
| ca.key, ca.pem | the authority, which signs certificates and which everyone trusts |
| ca-next.key | the key of the authority that will sign next, while one replaces another |
| broker-N.pem, client.pem, admin.pem | a private key with its certificates |
| *.p12 | the same keys, and the authority as truststore.p12, as PKCS12 |
| broker-N.properties, client.properties, admin.properties | settings with Kafka's names |
| scram-users.json | the SCRAM credentials to store in the tree: salted hashes, no passwords |

Only the owner can read the folder and its files.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.config.internal_topics import internal_topic_settings
from tidelog.security.scram import BY_NAME, scram_credential

if TYPE_CHECKING:
    from tidelog.security.certificates import CertificateAuthority, KeyPair

MECHANISM = "SCRAM-SHA-512"
ITERATIONS = 8192
BROKER_USER, ADMIN_USER, CLIENT_USER = "broker", "admin", "client"
USERS_FILE = "scram-users.json"
AUTHORITY_KEY, AUTHORITY_FILE = "ca.key", "ca.pem"
TRUSTSTORE = "truststore.p12"
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
LISTENER = "SASL_SSL"
PREFIX = "listener.name.sasl_ssl"
AUTHORITY_NAME = "tidelog cluster authority"
LOCAL_NAMES = ("localhost", "127.0.0.1")


class FolderRefused(Exception):
    """The folder cannot be written or read; the message says why and what to do."""


@dataclass(slots=True, frozen=True)
class BrokerAddress:
    """The address that a broker tells its clients."""

    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(slots=True, frozen=True)
class FolderOptions:
    """`installed` is the folder's path on the machines that use the settings, if it is copied there."""

    brokers: Sequence[BrokerAddress]
    alternative_names: Sequence[str] = ()
    days: int = 365
    authority_days: int = 3650
    key_type: str = "EC"
    store_type: str = "PEM"
    installed: Path | None = None
    zookeeper: str | None = None


class SecurityFolder:
    """`create` makes all files, `users` and `broker_properties` find them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, options: FolderOptions, *, force: bool = False) -> list[Path]:
        """Write all files and return them. FolderRefused if one is there, unless `force` replaces it."""
        files = _Files(options, (options.installed or self.path).absolute()).contents()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not force:
                self._refuse_content()
            if not any(self.path.iterdir()):
                self.path.chmod(0o700)
            for name, content in files.items():
                write_private(self.path / name, content)
        except OSError as error:
            raise FolderRefused(f"{error.filename or self.path}: {error.strerror}") from None
        return [self.path / name for name in files]

    def broker_properties(self, broker_id: int) -> Path:
        """The settings of a broker. FolderRefused if there are none."""
        file = self.path / f"broker-{broker_id}.properties"
        if not file.is_file():
            raise FolderRefused(
                f"{self.path} has no {file.name}: call tidelog security add-brokers for so many brokers"
            )
        return file

    def broker_count(self) -> int:
        """How many brokers the folder has settings for."""
        return len(list(self.path.glob("broker-*.properties")))

    @property
    def admin_properties(self) -> Path:
        return self.path / "admin.properties"

    def users(self) -> dict[str, dict[str, str]]:
        """The SCRAM credentials by user and mechanism, as the tree has them."""
        file = self.path / USERS_FILE
        try:
            found = json.loads(file.read_text())
            return {str(user): {str(k): str(v) for k, v in some.items()} for user, some in found.items()}
        except OSError as error:
            raise FolderRefused(f"{file}: {error.strerror}") from None
        except (ValueError, AttributeError):
            raise FolderRefused(f"{file} has no SCRAM credentials of users") from None

    def _refuse_content(self) -> None:
        present = sorted(entry.name for entry in self.path.iterdir())
        if present:
            raise FolderRefused(f"{self.path} has {present[0]} in it: name a new folder, or add --force")


class _Files:
    """The contents of the files of one folder, all made in memory."""

    def __init__(self, options: FolderOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._passwords = {name: new_password() for name in (BROKER_USER, ADMIN_USER, CLIENT_USER)}
        self._truststore_password = new_password()

    def contents(self) -> dict[str, bytes]:
        from tidelog.security.certificates import (
            CertificateAuthority,
            certificates_pem,
            truststore_pkcs12,
        )

        options = self._options
        days = max(options.days, options.authority_days)
        authority = CertificateAuthority.create(AUTHORITY_NAME, options.key_type, days)
        authority.days = options.days
        files = {
            AUTHORITY_KEY: authority.pair.key_pem(),
            AUTHORITY_FILE: certificates_pem([authority.pair.certificate]),
            TRUSTSTORE: truststore_pkcs12([authority.pair.certificate], self._truststore_password),
        }
        for broker in options.brokers:
            files.update(self._broker(authority, broker))
        for user in (CLIENT_USER, ADMIN_USER):
            stores = self._stores(user, authority.client(user), files)
            files[f"{user}.properties"] = _properties(self._client_settings(user), stores)
        users = {name: {MECHANISM: _credential_text(password)} for name, password in self._passwords.items()}
        files[USERS_FILE] = (json.dumps(users, indent=2) + "\n").encode()
        return files

    def _broker(self, authority: CertificateAuthority, broker: BrokerAddress) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        name = f"broker-{broker.broker_id}"
        names = broker_names(broker.host, self._options.alternative_names)
        stores = self._stores(name, authority.broker(name, names), files)
        files[f"{name}.properties"] = _properties(self._broker_settings(broker), stores)
        return files

    def _broker_settings(self, broker: BrokerAddress) -> Iterator[tuple[str, str]]:
        yield "broker.id", str(broker.broker_id)
        if self._options.zookeeper is not None:
            yield "zookeeper.connect", self._options.zookeeper
        yield "listeners", broker_listener(broker)
        yield "advertised.listeners", f"{LISTENER}://{broker}"
        yield "security.inter.broker.protocol", LISTENER
        yield "sasl.enabled.mechanisms", MECHANISM
        yield "sasl.mechanism.inter.broker.protocol", MECHANISM
        yield f"{PREFIX}.{MECHANISM.lower()}.sasl.jaas.config", self._jaas(BROKER_USER)
        # A certificate is checked if the client has one; SCRAM says who the client is.
        yield f"{PREFIX}.ssl.client.auth", "requested"
        yield "authorizer.class.name", AUTHORIZER
        yield "super.users", f"User:{ADMIN_USER};User:{BROKER_USER}"
        yield "allow.everyone.if.no.acl.found", "false"
        yield from internal_topic_settings(len(self._options.brokers)).items()

    def _client_settings(self, user: str) -> Iterator[tuple[str, str]]:
        yield "bootstrap.servers", ",".join(map(str, self._options.brokers))
        yield "security.protocol", LISTENER
        yield "sasl.mechanism", MECHANISM
        yield "sasl.jaas.config", self._jaas(user)

    def _jaas(self, user: str) -> str:
        return f'{LOGIN_MODULE} required username="{user}" password="{self._passwords[user]}";'

    def _stores(self, name: str, pair: KeyPair, files: dict[str, bytes]) -> dict[str, dict[str, str]]:
        """Add a key's files; returns the settings that name them, by store type, the wanted type first."""
        password = new_password()
        files[f"{name}.pem"] = pair.key_pem() + pair.certificate_pem()
        files[f"{name}.p12"] = pair.keystore_pkcs12(name, password)
        settings = {
            "PEM": {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._folder / f"{name}.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._folder / AUTHORITY_FILE),
            },
            "PKCS12": {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self._folder / f"{name}.p12"),
                "ssl.keystore.password": password,
                "ssl.key.password": password,
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(self._folder / TRUSTSTORE),
                "ssl.truststore.password": self._truststore_password,
            },
        }
        wanted = self._options.store_type
        return {wanted: settings.pop(wanted), **settings}


def broker_listener(broker: BrokerAddress) -> str:
    """The address that a broker binds: on another machine than this one all of its addresses."""
    return f"{LISTENER}://{broker if broker.host in LOCAL_NAMES else f'0.0.0.0:{broker.port}'}"


def broker_names(host: str, more: Iterable[str]) -> list[str]:
    """The names in the certificate of a broker."""
    return list(dict.fromkeys([host, *LOCAL_NAMES, *more]))


def write_private(file: Path, content: bytes) -> None:
    """Write a file for its owner alone, also if another one with other permissions was there."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)


def replace_private(files: Mapping[Path, bytes]) -> None:
    """Replace files for their owner alone. Who reads one meanwhile gets the old or the new one.

    Raises FolderRefused.
    """
    for file, content in files.items():
        fresh = file.with_name(f".{file.name}.new")
        try:
            write_private(fresh, content)
            fresh.replace(file)
        except OSError as error:
            raise FolderRefused(f"{error.filename or file}: {error.strerror}") from None


def _properties(settings: Iterable[tuple[str, str]], stores: Mapping[str, Mapping[str, str]]) -> bytes:
    """The lines of a file; the stores of the type that is not in use are comments."""
    lines = [f"{name}={_escaped(value)}" for name, value in settings]
    for number, (store_type, values) in enumerate(stores.items()):
        mark = "#" if number else ""
        if mark:
            lines.append(f"# The same as {store_type}:")
        lines += [f"{mark}{name}={_escaped(value)}" for name, value in values.items()]
    return ("\n".join(lines) + "\n").encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


def new_password() -> str:
    """A password of a user or of a store."""
    return secrets.token_urlsafe(24)


def _credential_text(password: str) -> str:
    return scram_credential(password, BY_NAME[MECHANISM], ITERATIONS).format()
