"""SaslListener: authenticates the clients of a SASL listener, with the broker's users and tokens."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.metadata.paths import entity_path
from tidelog.network.authentication_metrics import AuthenticationMetrics
from tidelog.network.listener_security import ANONYMOUS
from tidelog.security.sasl.authenticator import AnswerVersions, SaslServerAuthenticator
from tidelog.security.sasl.authenticator import Session as SaslSession
from tidelog.security.sasl.mechanisms import FindTokenOf, SaslSettings, make_mechanisms
from tidelog.security.sasl.scram import choice
from tidelog.security.scram import ScramAlgorithm, ScramCredential

if TYPE_CHECKING:
    from tidelog.cluster.metadata_cache import MetadataCache
    from tidelog.network.channel import Channel
    from tidelog.network.listener_security import Session
    from tidelog.server.tls_listener import TlsListener


class ScramUsers:
    """The SCRAM credentials of the tree's users."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._counted: object = None
        self._iterations: dict[ScramAlgorithm, list[int]] = {}

    def find(self, user: str, mechanism: ScramAlgorithm) -> ScramCredential | None:
        configs = self._metadata.snapshot.entity_configs.get(entity_path("users", user), {})
        return _credential(configs, mechanism)

    def iterations(self, user: str, mechanism: ScramAlgorithm) -> int:
        """The iterations that an unknown user of this name seems to have: always those of the same existing
        user.

        With one number for all unknown names, attackers could distinguish them from users with another
        number.
        """
        entities = self._metadata.snapshot.entity_configs
        if entities is not self._counted:
            self._counted = entities
            self._iterations = {kind: _iterations(entities, kind) for kind in ScramAlgorithm}
        known = self._iterations[mechanism]
        return choice(known, user) if known else mechanism.min_iterations


def _credential(configs: Mapping[str, str], mechanism: ScramAlgorithm) -> ScramCredential | None:
    text = configs.get(mechanism.mechanism_name)
    try:
        return None if text is None else ScramCredential.parse(text)
    except ValueError:
        return None


def _iterations(entities: Mapping[str, Mapping[str, str]], mechanism: ScramAlgorithm) -> list[int]:
    users = (configs for path, configs in entities.items() if path.startswith("users/"))
    found = (_credential(configs, mechanism) for configs in users)
    return sorted(credential.iterations for credential in found if credential is not None)


class SaslListener:
    """Implements tidelog.network.listener_security.ListenerSecurity."""

    def __init__(
        self,
        settings: SaslSettings,
        metadata: MetadataCache,
        find_token: FindTokenOf | None,
        answer_versions: AnswerVersions,
        now_ms: Callable[[], int],
        tls: TlsListener | None = None,
    ) -> None:
        """`tls` is that of a SASL_SSL listener. Raises ConfigError."""
        self._tls = tls
        self.metrics = AuthenticationMetrics()
        self._users = ScramUsers(metadata)
        self._find_token = find_token
        self._answer_versions = answer_versions
        self._now_ms = now_ms
        self.update(settings)

    def update(self, settings: SaslSettings) -> None:
        """Use these settings for later authentications. If it raises ConfigError, nothing changes."""
        mechanisms = make_mechanisms(settings, self._users, self._find_token)
        self._user_name = _kerberos_names(settings) if "GSSAPI" in mechanisms else None
        self._settings, self._mechanisms = settings, mechanisms

    @property
    def max_receive_size(self) -> int:
        return self._settings.max_receive_size

    @property
    def failure_delay_seconds(self) -> float:
        return self._settings.failure_delay_ms / 1000

    def tls_context(self) -> ssl.SSLContext | None:
        return None if self._tls is None else self._tls.context

    def principal_of(self, certificate: bytes | None, host: str) -> str:
        return ANONYMOUS  # until SASL tells

    def authenticator(self, channel: Channel, previous: Session | None = None) -> SaslServerAuthenticator:
        assert previous is None or isinstance(previous, SaslSession)
        return SaslServerAuthenticator(
            self._mechanisms, self._answer_versions, self._now_ms, previous, self._user_name
        )


def _kerberos_names(settings: SaslSettings) -> Callable[[str, str], str]:
    from tidelog.config.values import ConfigError
    from tidelog.security.kerberos_names import KerberosNames
    from tidelog.security.sasl.gssapi import default_realm

    try:
        names = KerberosNames(settings.kerberos_rules, default_realm())
    except ValueError as error:
        value = ",".join(settings.kerberos_rules)
        raise ConfigError("sasl.kerberos.principal.to.local.rules", value, str(error)) from None

    def user_name(mechanism: str, authorization_id: str) -> str:
        return names.short_name(authorization_id) if mechanism == "GSSAPI" else authorization_id

    return user_name
