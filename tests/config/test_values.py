"""Texts become typed values by Java's rules, and come back as Java prints them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.definition import ConfigDef, ConfigKey, Dynamic, parse_key
from tidelog.config.rules import parse_rule
from tidelog.config.values import (
    LONG_MAX,
    ConfigError,
    ConfigType,
    ConfigValue,
    Password,
    parse_value,
    render_value,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "False", False),
        (ConfigType.INT, " +5 ", 5),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", LONG_MAX),
        (ConfigType.DOUBLE, "5e-1", 0.5),
        (ConfigType.DOUBLE, ".5f", 0.5),
        (ConfigType.DOUBLE, "3", 3.0),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c")),
        (ConfigType.LIST, "", ()),
        (ConfigType.STRING, "  text ", "text"),
        (ConfigType.CLASS, "org.example.Thing", "org.example.Thing"),
        (ConfigType.PASSWORD, "secret", Password("secret")),
    ],
)
def test_a_text_becomes_a_value(kind: ConfigType, text: str, value: ConfigValue) -> None:
    parsed = parse_value("name", kind, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, ""),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "0x10"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, "٣"),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9" * 5000),
        (ConfigType.DOUBLE, "x"),
        (ConfigType.DOUBLE, "1_0"),
        (ConfigType.DOUBLE, "nan"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused_by_name(kind: ConfigType, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^the\.name=.*expected"):
        parse_value("the.name", kind, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e-4, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (("a", "b"), "a,b"),
        ((), ""),
        (None, None),
        (Password("secret"), None),
    ],
)
def test_a_value_is_shown_as_kafka_shows_it(value: ConfigValue, text: str | None) -> None:
    assert render_value(value) == text


@given(st.floats(allow_nan=False))
def test_a_number_that_is_shown_reads_back_as_itself(number: float) -> None:
    text = render_value(number)
    assert text is not None
    assert parse_value("name", ConfigType.DOUBLE, text) == number


@given(st.sampled_from(ConfigType), st.text())
def test_no_text_does_more_than_be_refused(kind: ConfigType, text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_value("name", kind, text)


@pytest.mark.parametrize(
    ("rule", "fine", "bad"),
    [
        (">=1", [1, LONG_MAX], [0, -1]),
        ("1..9|-1", [1, 9, -1], [0, 10, -2]),
        ("0..1", [0.0, 1.0, math.nan], [-0.1, 1.5]),
        ("in(a,b)", ["a"], ["A", ""]),
        ("anycase(a,b)", ["A", "b"], ["c"]),
        ("each(a,b)", [(), ("a",), ("b", "a")], [("a", "c"), ("",)]),
        ("nonempty", ["x", "two\nlines"], [""]),
        ("replicas", [(), ("*",), ("0:1", "1:2")], [("0",), ("a:b",), ("",)]),
        ("hosts", ["", "a:1", "a:1, ::1:2"], ["a", "a:", ":1", "a:1,", "a:-1"]),
        ("address", [":9090", "127.0.0.1:0", "[::1]:80"], ["9090", "host"]),
        ("version", ["3.9", "3.9-IV0"], ["3", "latest"]),
        ("levels", [("network:DEBUG", "storage.log:trace")], [("DEBUG",), ("network:LOUD",)]),
    ],
)
def test_a_rule_says_what_would_be_right(rule: str, fine: list[ConfigValue], bad: list[ConfigValue]) -> None:
    parsed = parse_rule(rule)
    assert [value for value in fine if parsed.problem(value) is not None] == []
    for value in bad:
        assert parsed.problem(value) == f"expected {parsed.allowed()}"
    assert parsed.problem(None) is None


def key(line: str) -> ConfigKey:
    return parse_key(line)


def test_a_line_declares_a_setting() -> None:
    declared = key("a.b.ms long null high >=1 cluster-wide else=a.b.hours kafka=7 retired")
    assert (declared.name, declared.attribute, declared.type) == ("a.b.ms", "a_b_ms", ConfigType.LONG)
    assert declared.default is None
    assert declared.dynamic is Dynamic.CLUSTER_WIDE
    assert declared.synonyms == ("a.b.hours",)
    assert (declared.kafka_default, declared.retired, declared.served) == ("7", True, True)
    assert key('empty string "" low').default == ""


def test_a_bad_value_names_setting_value_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^num\.threads=0: expected at least 1$"):
        key("num.threads int 8 high >=1").parse("0")


def test_a_bad_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        key("a.secret password null high in(x)").parse("hunter2")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Password("hunter2"))


def test_a_setting_declared_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="twice"):
        ConfigDef("a int 1 low\na int 2 low\n")
