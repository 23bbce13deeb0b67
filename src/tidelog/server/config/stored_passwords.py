"""Passwords among the stored settings of brokers: encrypted with password.encoder.secret.

In a cluster a password cannot be stored without that secret, as in Kafka 3.9: ZooKeeper is no place for it. A
broker alone has a tree that only its owner reads, and stores it there as it is, as Kafka 4.3 does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.config.values import ConfigType, Password
from tidelog.errors import InvalidConfig
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import key_of

if TYPE_CHECKING:
    from tidelog.security.password_encoder import PasswordEncoder  # few brokers store passwords

log = logging.getLogger("tidelog.server")

DEFAULT_KEY_FACTORY = "PBKDF2WithHmacSHA512"


class StoredPasswords:
    """Turns settings of a broker into what the tree stores, and back."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def encoded(self, configs: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
        """The settings as the tree stores them; a password that is in `stored` already keeps its text.

        Raises InvalidConfig if a password cannot be stored.
        """
        before = self.decoded(stored)
        return {
            name: value
            if not _is_password(name)
            else stored[name]
            if before.get(name) == value
            else self._encode(name, value)
            for name, value in configs.items()
        }

    def decoded(self, stored: Mapping[str, str]) -> dict[str, str]:
        """The settings with their passwords. Passwords of another secret are left out and logged."""
        found = dict(stored)
        passwords = [name for name in stored if _is_password(name)]
        if not passwords:
            return found
        from tidelog.security.password_encoder import NotDecodable, is_encoded

        for name in passwords:
            if not is_encoded(found[name]):
                continue
            encoder = self._encoder()
            try:
                if encoder is None:
                    raise NotDecodable("password.encoder.secret is not set")
                found[name] = encoder.decode(found[name])
            except NotDecodable as error:
                del found[name]
                log.error("the stored setting %s is left out: %s", name, error)
        return found

    def _encode(self, name: str, value: str) -> str:
        encoder = self._encoder()
        if encoder is not None:
            return encoder.encode(value)
        if self._config.is_alone:
            return value
        raise InvalidConfig(f"{name} is a password: set password.encoder.secret on the brokers to store it")

    def _encoder(self) -> PasswordEncoder | None:
        config = self._config
        if config.password_encoder_secret is None:
            return None
        from tidelog.security.password_encoder import PasswordEncoder

        old = config.password_encoder_old_secret
        return PasswordEncoder(
            config.password_encoder_secret.secret,
            old.secret if isinstance(old, Password) else None,
            config.password_encoder_keyfactory_algorithm or DEFAULT_KEY_FACTORY,
            config.password_encoder_cipher_algorithm,
            config.password_encoder_key_length,
            config.password_encoder_iterations,
        )


def unencrypted_passwords(stored: Mapping[str, str]) -> list[str]:
    """The names of stored settings whose passwords everyone can read who reads the tree."""
    passwords = [name for name in stored if _is_password(name)]
    if not passwords:
        return []
    from tidelog.security.password_encoder import is_encoded

    return [name for name in passwords if not is_encoded(stored[name])]


def _is_password(name: str) -> bool:
    key = key_of(name)
    return key is not None and key.type is ConfigType.PASSWORD
