"""Principals: who a connection belongs to, from its certificate. `principal.builder.class` decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from tidelog.config import ConfigError
from tidelog.security.distinguished_name import subject_of
from tidelog.security.principal_mapping import PrincipalMapper

SETTING = "principal.builder.class"
DEFAULT_BUILDER = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True, frozen=True)
class AuthenticationContext:
    """What is known of a connection: Kafka's AuthenticationContext.

    `certificate` is that of a TLS client, in DER. `sasl_name` is the authorization id of a SASL client.
    """

    listener: str
    security_protocol: str
    client_address: str
    certificate: bytes | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    sasl_name: str | None = None


class KafkaPrincipalBuilder(Protocol):
    """A class of `principal.builder.class`. It is created without arguments and called on threads."""

    def build(self, context: AuthenticationContext) -> str:
        """The principal, such as User:alice. An exception refuses the connection."""


class DefaultKafkaPrincipalBuilder:
    """User: and the mapped distinguished name, or the name of SASL; User:ANONYMOUS without both."""

    def __init__(self, mapper: PrincipalMapper) -> None:
        self._mapper = mapper

    def build(self, context: AuthenticationContext) -> str:
        if context.sasl_name is not None:
            return f"User:{context.sasl_name}"
        if context.certificate is None:
            return ANONYMOUS
        return f"User:{self._mapper.name_of(subject_of(context.certificate))}"


def principal_builder(name: str, mapping_rules: str) -> KafkaPrincipalBuilder:
    """The builder that the setting names: Kafka's default, or a Python class. Raises ConfigError."""
    mapper = PrincipalMapper(mapping_rules)
    if name == DEFAULT_BUILDER:
        return DefaultKafkaPrincipalBuilder(mapper)
    module, _, kind = name.replace(":", ".").rpartition(".")
    try:
        builder = getattr(import_module(module), kind)()
    except Exception as error:
        problem = f"expected a Python class such as package.module.Class: {error or type(error).__name__}"
        raise ConfigError(SETTING, name, problem) from error
    if not callable(getattr(builder, "build", None)):
        raise ConfigError(SETTING, name, "expected a class with a method build(context)")
    return _Checked(builder, name)


class _Checked:
    """Checks what a builder of the user returns."""

    def __init__(self, builder: KafkaPrincipalBuilder, name: str) -> None:
        self._builder = builder
        self._name = name

    def build(self, context: AuthenticationContext) -> str:
        principal: object = self._builder.build(context)
        if not isinstance(principal, str) or not all(principal.partition(":")):
            raise ValueError(f"{self._name} returned {principal!r}, not a principal such as User:alice")
        return principal
