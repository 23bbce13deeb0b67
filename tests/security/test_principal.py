"""Principals of certificates are Kafka's: Java's text of the name, the mapping rules, and builders."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.certificates import make_authority, make_certificate
from tidelog.config import ConfigError
from tidelog.security.distinguished_name import alternative_names, subject_of
from tidelog.security.principal import DEFAULT_BUILDER, AuthenticationContext, principal_builder
from tidelog.security.principal_mapping import NoMatchingRule, PrincipalMapper

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "principals" / "recorded.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED["names"], ids=lambda recorded: ascii(recorded["name"]))
def test_names_are_written_as_java_does(recorded: dict[str, str]) -> None:
    assert subject_of(base64.b64decode(recorded["certificate"])) == recorded["name"]


@pytest.mark.parametrize(
    "recorded", RECORDED["rules"], ids=lambda recorded: f"{recorded['rules']} {recorded['name']}"
)
def test_rules_map_names_as_in_kafka(recorded: dict[str, str | None]) -> None:
    rules, name, error = recorded["rules"], recorded["name"], recorded["error"]
    assert rules is not None
    assert name is not None
    if error == "IllegalArgumentException":
        with pytest.raises(ConfigError):
            PrincipalMapper(rules)
    elif error is not None:
        with pytest.raises(NoMatchingRule):
            PrincipalMapper(rules).name_of(name)
    else:
        assert PrincipalMapper(rules).name_of(name) == recorded["principal"]


def test_a_pattern_that_is_not_valid_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ssl.principal.mapping.rules.*the pattern '\(' is not valid"):
        PrincipalMapper("RULE:(/x/")


def context(certificate: bytes | None) -> AuthenticationContext:
    return AuthenticationContext("EXTERNAL", "SSL", "127.0.0.1", certificate)


def test_the_default_builder_maps_the_name_of_a_certificate() -> None:
    signed = make_certificate(make_authority(), "Alice")
    der = signed.certificate.public_bytes(Encoding.DER)
    builder = principal_builder(DEFAULT_BUILDER, "RULE:CN=(.*)/$1/L")
    assert builder.build(context(der)) == "User:alice"
    assert builder.build(context(None)) == "User:ANONYMOUS"
    assert len(alternative_names(der)) == 2


class ByAddress:
    def build(self, context: AuthenticationContext) -> str:
        return f"Host:{context.client_address}"


class Wrong:
    def build(self, context: AuthenticationContext) -> str:
        return "nobody"


def test_a_builder_can_be_a_python_class() -> None:
    builder = principal_builder(f"{__name__}.ByAddress", "DEFAULT")
    assert builder.build(context(None)) == "Host:127.0.0.1"
    with pytest.raises(ValueError, match="returned 'nobody'"):
        principal_builder(f"{__name__}:Wrong", "DEFAULT").build(context(None))


@pytest.mark.parametrize("name", ["com.example.Builder", "Builder", "json.JSONDecoder", "json.nothing"])
def test_a_builder_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"principal.builder.class"):
        principal_builder(name, "DEFAULT")
