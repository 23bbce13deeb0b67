"""Connects to ZooKeeper with the broker's settings."""

from __future__ import annotations

import random
import ssl

from tidelog.metadata.async_tree import SessionEvent
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree, open_acl, secure_acl
from tidelog.server.config.cluster import ClusterConfig, ZooKeeperTls
from tidelog.server.run import StartFailed
from tidelog.server.session_file import SessionFile


def zookeeper_settings(config: ClusterConfig) -> ZooKeeperSettings:
    """Raises StartFailed if a file of keys or certificates cannot be used."""
    digest = config.zookeeper_digest
    return ZooKeeperSettings(
        session_timeout=config.zookeeper_session_timeout_ms / 1000,
        connect_timeout=config.zookeeper_connection_timeout_ms / 1000,
        tls=None if config.zookeeper_tls is None else tls_context(config.zookeeper_tls),
        auth=() if digest is None else (("digest", digest.secret.encode()),),
        acl=secure_acl if config.zookeeper_set_acl else open_acl,
        max_in_flight=config.zookeeper_max_in_flight_requests,
    )


async def connect_zookeeper(config: ClusterConfig, folder: str, rng: random.Random) -> ZooKeeperTree:
    """A session that is noted in the log folder; ends the session of a killed broker that used the folder.

    Raises TreeUnavailable if no server answers in time, StartFailed if the settings cannot be used.
    """
    settings, hosts = zookeeper_settings(config), config.zookeeper_connect
    noted = SessionFile(folder)
    try:
        await noted.close_old_session(hosts, settings, rng)
        tree = await ZooKeeperTree.connect(hosts, settings, rng=rng)
    except ValueError as error:
        raise StartFailed(f"zookeeper.connect={hosts}: {error}") from None

    def note(event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            noted.write(tree)

    note(SessionEvent.CONNECTED)
    tree.listen(note)
    return tree


def tls_context(tls: ZooKeeperTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in tls.versions else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in tls.versions else ssl.TLSVersion.TLSv1_2
    if tls.cipher_suites:
        try:
            context.set_ciphers(":".join(tls.cipher_suites))
        except ssl.SSLError:
            suites = ",".join(tls.cipher_suites)
            problem = "expected OpenSSL's names of suites"
            raise StartFailed(f"zookeeper.ssl.cipher.suites={suites}: {problem}") from None
    try:
        if tls.trusted_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(tls.trusted_file)
    except (OSError, ssl.SSLError) as error:
        problem = f"expected certificates in PEM: {error}"
        raise StartFailed(f"zookeeper.ssl.truststore.location={tls.trusted_file}: {problem}") from None
    if tls.key_file is not None:
        _load_key(context, tls.key_file, tls)
    return context


def _load_key(context: ssl.SSLContext, path: str, tls: ZooKeeperTls) -> None:
    def password() -> str:
        # Otherwise the library would ask on the terminal.
        if tls.key_password is None:
            raise StartFailed("zookeeper.ssl.keystore.password: needed, as the key is encrypted")
        return tls.key_password.secret

    try:
        context.load_cert_chain(path, password=password)
    except (OSError, ssl.SSLError) as error:
        problem = f"expected a key and its certificates in PEM: {error}"
        raise StartFailed(f"zookeeper.ssl.keystore.location={path}: {problem}") from None
