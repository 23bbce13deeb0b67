"""JAAS texts: what is read from them, and what is refused."""

from __future__ import annotations

import pytest

from tidelog.security.jaas import (
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    login_module,
    parse_jaas,
)


def test_a_module_with_its_flag_and_options() -> None:
    (module,) = parse_jaas(f'{PLAIN_MODULE} required username="alice" password="a b;c=d" debug=true;')
    assert (module.name, module.flag) == (PLAIN_MODULE, "required")
    assert module.options == {"username": "alice", "password": "a b;c=d", "debug": "true"}


def test_several_modules_and_comments() -> None:
    text = f"""
        // the first
        {PLAIN_MODULE} REQUIRED user_alice='one'; /* and
        the second */ {SCRAM_MODULE} optional
            username = "bob"
            password = "two" ;
    """
    first, second = parse_jaas(text)
    assert (first.flag, first.options) == ("required", {"user_alice": "one"})
    assert (second.flag, second.options) == ("optional", {"username": "bob", "password": "two"})


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"a\"b", 'a"b'), (r"a\\b", "a\\b"), (r"a\nb", "a\nb"), (r"a\101b", "aAb"), ("ä", "ä"), ("", "")],
)
def test_escapes_in_quoted_values(written: str, read: str) -> None:
    assert parse_jaas(f'{PLAIN_MODULE} required password="{written}";')[0].options == {"password": read}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no login module"),
        (f"{PLAIN_MODULE} required", "semicolon"),
        (f'{PLAIN_MODULE} required password="open;', "no end"),
        (f"{PLAIN_MODULE} required password;", "name=value"),
        (f"{PLAIN_MODULE} required =x;", "name=value"),
        (f"{PLAIN_MODULE};", "control flag"),
        (f"{PLAIN_MODULE} always;", "always is not a control flag"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "not allowed"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "not allowed"),
        ("com.example.OurLoginModule required;", "not a known login module"),
    ],
)
def test_texts_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(JaasError, match=problem):
        parse_jaas(text)


def test_no_error_and_no_repr_has_a_password() -> None:
    with pytest.raises(JaasError) as raised:
        parse_jaas(f'{PLAIN_MODULE} required password="secret" oops;')
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(parse_jaas(f'{PLAIN_MODULE} required password="secret";'))


def test_a_mechanism_has_one_module_of_its_own() -> None:
    assert login_module(f"{SCRAM_MODULE} required;", "SCRAM-SHA-512").options == {}
    with pytest.raises(JaasError, match="not the login module of PLAIN"):
        login_module(f"{SCRAM_MODULE} required;", "PLAIN")
    with pytest.raises(JaasError, match="expected one login module, not 2"):
        login_module(f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "PLAIN")
