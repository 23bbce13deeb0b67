"""Sessions, tokens of pages, and the limit of failed logins: rules that need no server."""

from __future__ import annotations

import logging

import pytest

from tidelog.clock import ManualClock
from tidelog.console.audit import audit
from tidelog.console.csrf import COOKIE, CsrfGuard
from tidelog.console.errors import ApiError
from tidelog.console.login_limit import FREE, LONGEST_WAIT, LoginLimit
from tidelog.console.sessions import ID_LENGTH, MOST_OF_ONE, Identity, Session, Sessions

ALICE = Identity("User:alice", credentials={"sasl.password": "alice's word"})


def sessions(clock: ManualClock) -> tuple[Sessions, list[Session]]:
    ended: list[Session] = []
    made = Sessions(idle_seconds=60, max_seconds=600, now=clock.monotonic, on_end=ended.append)
    return made, ended


def test_ids_are_long_random_and_new_for_each_login() -> None:
    made, _ = sessions(ManualClock())
    ids = {made.begin(ALICE).session_id for _ in range(10)}
    assert len(ids) == 10
    assert {len(each) for each in ids} == {ID_LENGTH}


def test_a_session_ends_when_it_is_idle() -> None:
    clock = ManualClock()
    made, ended = sessions(clock)
    session = made.begin(ALICE)
    for _ in range(5):
        clock.advance(59)
        assert made.find(session.session_id) is session
    clock.advance(59)
    assert made.is_alive(session.session_id)  # no use of it
    assert made.find(session.session_id, is_used=False) is session
    clock.advance(1)
    assert made.find(session.session_id) is None
    assert ended == [session]


def test_a_session_ends_at_its_limit_however_busy_it_is() -> None:
    clock = ManualClock()
    made, ended = sessions(clock)
    session, short = made.begin(ALICE), made.begin(Identity("User:bob", ends_in=100.0))
    for _ in range(19):
        clock.advance(30)
        assert made.find(session.session_id) is session
        assert (made.find(short.session_id) is short) is (clock.monotonic() < 100)
    clock.advance(30)
    assert made.find(session.session_id) is None
    assert ended == [short, session]


def test_a_logout_ends_a_session_at_once() -> None:
    made, ended = sessions(ManualClock())
    session = made.begin(ALICE)
    made.end(session.session_id)
    made.end(session.session_id)
    assert made.find(session.session_id) is None
    assert ended == [session]


def test_one_principal_has_a_limited_number_of_sessions() -> None:
    clock = ManualClock()
    made, ended = sessions(clock)
    first = made.begin(ALICE)
    clock.advance(1)
    for _ in range(MOST_OF_ONE):
        made.begin(ALICE)
    assert (len(made), ended) == (MOST_OF_ONE, [first])


def test_credentials_and_ids_are_in_no_representation() -> None:
    made, _ = sessions(ManualClock())
    session = made.begin(ALICE)
    assert "alice's word" not in repr(session)
    assert session.session_id not in repr(session)


# Tokens of pages


def test_a_change_of_a_browser_needs_the_token_of_its_page() -> None:
    guard, other = CsrfGuard(), CsrfGuard()
    visitor, stranger = guard.visitor({}), guard.visitor({})
    cookies = {COOKIE: visitor}
    headers = {"cookie": "x", "host": "localhost:8080"}
    guard.check(headers, cookies, guard.token(visitor))
    for wrong in (None, "", guard.token(stranger), other.token(visitor), guard.token(visitor)[:-1]):
        with pytest.raises(ApiError, match="token"):
            guard.check(headers, cookies, wrong)
    with pytest.raises(ApiError, match="token"):
        guard.check(headers, {}, guard.token(""))


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8081"},
    ],
)
def test_a_change_from_another_site_is_refused_with_any_token(headers: dict[str, str]) -> None:
    guard = CsrfGuard()
    visitor = guard.visitor({})
    with pytest.raises(ApiError, match="another site"):
        guard.check({"host": "localhost:8080", **headers}, {COOKIE: visitor}, guard.token(visitor))


def test_a_program_needs_no_token() -> None:
    CsrfGuard().check({"host": "localhost:8080"}, {}, None)


def test_a_cookie_of_another_form_is_replaced() -> None:
    for odd in ("", "short", "é" * ID_LENGTH, "x" * 10_000):
        assert len(CsrfGuard.visitor({COOKIE: odd})) == ID_LENGTH
        assert CsrfGuard.visitor({COOKIE: odd}) != odd


# The limit of logins


def test_guessing_becomes_slow() -> None:
    clock = ManualClock()
    limit = LoginLimit(clock.monotonic)
    tries = 0
    for _ in range(3600):
        if limit.attempt("10.0.0.1", "alice") == 0:
            tries += 1
        clock.advance(1)
    assert tries < 30  # in an hour
    assert limit.attempt("10.0.0.2", "alice") == 0  # alice herself, elsewhere
    assert limit.attempt("10.0.0.1", "alice") <= LONGEST_WAIT


def test_many_attempts_at_once_are_counted_before_their_outcome() -> None:
    limit = LoginLimit(ManualClock().monotonic)
    assert sum(limit.attempt("10.0.0.1", "alice") == 0 for _ in range(100)) == FREE["both"]


def test_an_address_that_guesses_many_users_becomes_slow() -> None:
    limit = LoginLimit(ManualClock().monotonic)
    addresses = [f"2001:db8::{index:x}" for index in range(200)]  # one network
    tries = sum(limit.attempt(address, f"user{at}") == 0 for at, address in enumerate(addresses))
    assert tries == FREE["address"]


def test_a_success_forgets_the_failures_of_the_user_there() -> None:
    clock = ManualClock()
    limit = LoginLimit(clock.monotonic)
    for _ in range(FREE["address"] * 2):
        assert limit.attempt("10.0.0.1", "alice") == 0
        limit.succeeded("10.0.0.1", "alice")


def test_the_memory_of_failures_is_bounded() -> None:
    limit = LoginLimit(ManualClock().monotonic, most_keys=30)
    for index in range(100):
        limit.attempt(f"10.0.0.{index}", f"user{index}")
    assert len(limit) == 30


# Audit


def test_an_audit_line_has_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidelog.console.audit"):
        audit(
            "change",
            principal="User:alice",
            address="10.0.0.1",
            action="group.reset",
            cluster="local",
            resource="group:\x1b[31mred\nnext=line" + "x" * 1000,
            outcome="done",
        )
    fields: dict[str, str] = caplog.records[0].fields  # type: ignore[attr-defined]
    assert fields["resource"].startswith("group:\\x1b[31mred\\nnext=line")
    assert len(fields["resource"]) < 330
    assert fields["outcome"] == "done"
