"""Files in Java's properties format are read as Java reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.properties import parse_properties, read_properties
from tidelog.config.values import ConfigError


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1\nb = 2\nc:3\nd : 4\ne 5\nf\t6", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6"}),
        ("# comment\n  ! comment\n\n   \na=1 # part of it\n", {"a": "1 # part of it"}),
        ("a=one, \\\n   two, \\\n\tthree\nb=2", {"a": "one, two, three", "b": "2"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=back\\\\\nb=2", {"a": "back\\", "b": "2"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("a=\\u0041\\t\\n\\q", {"a": "A\t\nq"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a\nb=\n=c", {"a": "", "b": "", "": "c"}),
        ("a==b", {"a": "=b"}),
        ("a=trailing  ", {"a": "trailing  "}),
        ("a=ends with \\", {"a": "ends with "}),
        ("listeners=PLAINTEXT://:9092,SSL://:9093", {"listeners": "PLAINTEXT://:9092,SSL://:9093"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_java_does(text: str, settings: dict[str, str]) -> None:
    assert parse_properties(text) == settings


def test_a_broken_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties("a=\\u12")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.properties: cannot be read: No such file"):
        read_properties(tmp_path / "missing.properties")


def test_a_file_of_any_bytes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xff\xfe\nb=\xc3\xa4\n")
    assert read_properties(path)["b"] == "ä"


names = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1)


def escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\=: #!\t\f" else char for char in text)


@given(st.dictionaries(names, names))
def test_what_is_escaped_reads_back(settings: dict[str, str]) -> None:
    text = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in settings.items())
    assert parse_properties(text) == settings
