"""Sessions of logged-in people: random ids, kept by the server alone, with an idle and an absolute limit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

ID_BYTES: Final = 32
ID_LENGTH: Final = 43
"""The characters of an id: 256 random bits in base64."""

IDLE_SECONDS: Final = 30 * 60.0
MAX_SECONDS: Final = 12 * 3600.0
MOST_SESSIONS: Final = 2_000
MOST_OF_ONE: Final = 20
"""The sessions of one principal: the next login ends the one that was unused for the longest time."""


@dataclass(slots=True, frozen=True)
class Identity:
    """Who has logged in, and the client settings that log in to the cluster as the same principal.

    `credentials` has passwords or tokens: it has no representation, and is in no answer.
    """

    name: str
    groups: tuple[str, ...] = ()
    credentials: Mapping[str, object] = field(default_factory=dict, repr=False)
    ends_in: float | None = None
    """The seconds after which the login is no longer valid; None without such a limit."""


@dataclass(slots=True)
class Session:
    """A login. Times are those of a monotonic clock."""

    session_id: str = field(repr=False)
    identity: Identity
    began: float
    seen: float
    ends: float


class Sessions:
    """The sessions by id. `on_end` is called with each session that ends, for whatever reason."""

    def __init__(
        self,
        *,
        idle_seconds: float = IDLE_SECONDS,
        max_seconds: float = MAX_SECONDS,
        now: Callable[[], float] = time.monotonic,
        on_end: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._max_seconds = max_seconds
        self._now = now
        self._on_end = on_end
        self._by_id: dict[str, Session] = {}

    def begin(self, identity: Identity) -> Session:
        """A session with a new id. An id that the browser had before the login never becomes one."""
        self.expire()
        own = [session for session in self._by_id.values() if session.identity.name == identity.name]
        if len(own) >= MOST_OF_ONE:
            self._end(min(own, key=lambda session: session.seen))
        elif len(self._by_id) >= MOST_SESSIONS:
            self._end(min(self._by_id.values(), key=lambda session: session.seen))
        now = self._now()
        limit = self._max_seconds if identity.ends_in is None else min(self._max_seconds, identity.ends_in)
        session = Session(secrets.token_urlsafe(ID_BYTES), identity, now, now, now + limit)
        self._by_id[session.session_id] = session
        return session

    def find(self, session_id: str, *, is_used: bool = True) -> Session | None:
        """The session with this id; None if there is none or it has ended.

        `is_used` begins the idle time anew. A page that asks by itself does not use the session.
        """
        session = self._by_id.get(session_id)
        if session is None:
            return None
        now = self._now()
        if self._is_over(session, now):
            self._end(session)
            return None
        if is_used:
            session.seen = now
        return session

    def is_alive(self, session_id: str) -> bool:
        """Whether the session goes on. This is no use of it: a live page must not keep it open."""
        session = self._by_id.get(session_id)
        return session is not None and not self._is_over(session, self._now())

    def end(self, session_id: str) -> None:
        session = self._by_id.get(session_id)
        if session is not None:
            self._end(session)

    def expire(self) -> None:
        """End the sessions whose time is over."""
        now = self._now()
        for session in [each for each in self._by_id.values() if self._is_over(each, now)]:
            self._end(session)

    def close(self) -> None:
        for session in list(self._by_id.values()):
            self._end(session)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def _is_over(self, session: Session, now: float) -> bool:
        return now >= session.ends or now - session.seen >= self._idle_seconds

    def _end(self, session: Session) -> None:
        if self._by_id.pop(session.session_id, None) is not None:
            self._on_end(session)


def without_login(settings: Mapping[str, object]) -> dict[str, object]:
    """Client settings without those of SASL: another login follows."""
    return {name: value for name, value in settings.items() if not name.startswith("sasl")}
