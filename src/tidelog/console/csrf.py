"""Protection against requests that other sites make a browser send.

Every browser has a random id in a cookie. The token of its pages is made from that id with a key of this
process, so another site knows neither. A login gives the browser a new id, and so a new token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from tidelog.console.errors import ApiError
from tidelog.console.sessions import ID_BYTES, ID_LENGTH

COOKIE: Final = "tidelog_console"
TOKEN_HEADER: Final = "x-csrf-token"
TOKEN_FIELD: Final = "csrf"
BROWSER_HEADERS: Final = ("cookie", "origin", "sec-fetch-site", "referer")
OWN_SITES: Final = ("same-origin", "none")


class CsrfGuard:
    """Makes and checks the tokens of pages."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    @staticmethod
    def visitor(cookies: Mapping[str, str]) -> str:
        """The id of the browser; a new one for a first visit."""
        known = cookies.get(COOKIE, "")
        return known if len(known) == ID_LENGTH and known.isascii() else secrets.token_urlsafe(ID_BYTES)

    def token(self, visitor: str) -> str:
        """The token that the pages of this browser send with every change."""
        return hmac.new(self._key, visitor.encode(), "sha256").hexdigest()

    def check(self, headers: Mapping[str, str], cookies: Mapping[str, str], given: str | None) -> None:
        """Raise ApiError 403 for a change from a browser that does not come from a page of this console.

        A program that is no browser sends neither cookies nor the headers of browsers, and needs no token.
        """
        if not any(name in headers for name in BROWSER_HEADERS):
            return
        check_origin(headers)
        visitor = cookies.get(COOKIE, "")
        wanted = self.token(visitor)
        if not visitor or not hmac.compare_digest(wanted.encode(), (given or "").encode()):
            raise ApiError(403, "CSRF", "The request has no valid token of a page: reload the page.")


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise ApiError 403 if the browser says that a page of another site makes the request."""
    if headers.get("sec-fetch-site", "same-origin") not in OWN_SITES or _is_foreign(headers):
        raise ApiError(403, "CSRF", "The request comes from a page of another site.")


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether the header Origin names another host than the request. A proxy may have changed the scheme."""
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
