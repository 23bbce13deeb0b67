"""TlsListener: the TLS of one listener: its context, the principals of its clients, reloads of its keys."""

from __future__ import annotations

import logging
import math
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidelog.config.values import ConfigError
from tidelog.network.authentication_metrics import AuthenticationMetrics
from tidelog.security.key_store_changes import (
    CertificateNames,
    certificate_names,
    check_names,
    check_trusts_itself,
)
from tidelog.security.principal import AuthenticationContext, KafkaPrincipalBuilder, principal_builder
from tidelog.security.tls import TlsSettings, server_context
from tidelog.server.config.tls import given_text, tls_settings
from tidelog.server.file_version import FileVersion, file_version

if TYPE_CHECKING:
    from tidelog.network.channel import Channel
    from tidelog.network.listener_security import Session
    from tidelog.server.config.broker import BrokerConfig

log = logging.getLogger("tidelog.server")

DAY_SECONDS = 24 * 3600.0
SOON_SECONDS = 30 * DAY_SECONDS


@dataclass(slots=True, frozen=True)
class TlsSource:
    """The input of a context. Equal sources make equal contexts."""

    settings: TlsSettings
    builder: str
    mapping_rules: str
    is_inter_broker: bool
    allow_dn_changes: bool
    allow_san_changes: bool
    files: tuple[FileVersion, ...]


@dataclass(slots=True, frozen=True)
class LoadedTls:
    source: TlsSource
    context: ssl.SSLContext = field(repr=False)
    names: tuple[CertificateNames, ...]
    builder: KafkaPrincipalBuilder


class TlsListener:
    """A reload replaces the context of new connections. Open connections keep theirs."""

    def __init__(self, config: BrokerConfig, listener: str, security_protocol: str) -> None:
        """Raises ConfigError if the settings do not allow TLS."""
        self.listener = listener
        self._security_protocol = security_protocol
        self._loaded = _load(self.source(config))
        self._prepared: LoadedTls | None = None
        self._refused: TlsSource | None = None
        self._warned_of = math.nan
        self._warned_at = 0.0

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.context

    def principal_of(self, certificate: bytes | None, host: str) -> str:
        """The principal of a client. Raises the exception of the principal builder."""
        return self._loaded.builder.build(
            AuthenticationContext(self.listener, self._security_protocol, host, certificate)
        )

    @property
    def end(self) -> float:
        """When the first of the certificates in use ends, in seconds since 1970."""
        return min((one.end for one in self._loaded.names), default=math.inf)

    def warn_of_end(self, now: float) -> None:
        """Log that a certificate ends soon, or has ended: at once, and again each day."""
        end = self.end
        if end - now > SOON_SECONDS or (end == self._warned_of and now < self._warned_at + DAY_SECONDS):
            return
        self._warned_of, self._warned_at = end, now
        text = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
        what = "ends" if end > now else "has ended"
        log.warning("listener %s: its certificate %s at %s", self.listener, what, text)

    def source(self, config: BrokerConfig) -> TlsSource:
        """The present values of the settings, with the versions of the files."""
        settings = tls_settings(config, self.listener, self._security_protocol)
        prefix = f"listener.name.{self.listener.lower()}."
        return TlsSource(
            settings,
            str(config[prefix + "principal.builder.class"]),
            given_text(config, self.listener, "ssl.principal.mapping.rules") or "DEFAULT",
            self.listener == config.inter_broker_listener,
            config[prefix + "ssl.allow.dn.changes"] is True,
            config[prefix + "ssl.allow.san.changes"] is True,
            (file_version(settings.keystore_location), file_version(settings.truststore_location)),
        )

    def has_stores(self, source: TlsSource) -> bool:
        """Whether the settings of the stores are those in use; the files may have changed."""
        new, used = source.settings, self._loaded.source.settings
        return (new.key_store, new.trust_store) == (used.key_store, used.trust_store)

    def prepare(self, source: TlsSource) -> None:
        """Load a changed source for the next `update`. Raises ConfigError."""
        if source != self._loaded.source:
            self._prepared = self._load_changed(source)

    def _load_changed(self, source: TlsSource) -> LoadedTls:
        loaded = _load(source)
        check_names(
            source.settings,
            self._loaded.names,
            loaded.names,
            allow_dn_changes=source.allow_dn_changes,
            allow_san_changes=source.allow_san_changes,
        )
        return loaded

    def update(self, source: TlsSource) -> None:
        """Use a changed source for new connections. An unusable one is logged once, and the old one stays."""
        if source in (self._loaded.source, self._refused):
            return
        # A thread that looks at the files may be here while the loop prepares other settings.
        loaded = self._prepared
        try:
            if loaded is None or loaded.source != source:
                loaded = self._load_changed(source)
        except ConfigError as error:
            self._refused = source
            log.error("listener %s keeps its keys: %s", self.listener, error)
            return
        self._loaded, self._prepared = loaded, None
        names = ", ".join(one.distinguished for one in loaded.names)
        log.info("listener %s has new TLS settings for new connections (%s)", self.listener, names)


class SslListener:
    """Implements tidelog.network.listener_security.ListenerSecurity for the protocol SSL."""

    max_receive_size = 0
    failure_delay_seconds = 0.0

    def __init__(self, tls: TlsListener) -> None:
        self.metrics = AuthenticationMetrics()
        self._tls = tls

    def tls_context(self) -> ssl.SSLContext:
        return self._tls.context

    def principal_of(self, certificate: bytes | None, host: str) -> str:
        return self._tls.principal_of(certificate, host)

    def authenticator(self, channel: Channel, previous: Session | None = None) -> None:
        return None


def _load(source: TlsSource) -> LoadedTls:
    settings = source.settings
    context = server_context(settings)
    if source.is_inter_broker:
        check_trusts_itself(settings)
    builder = principal_builder(source.builder, source.mapping_rules)
    return LoadedTls(source, context, certificate_names(settings), builder)
