"""Access: who may do what on the console, and the record of every change.

Without a configured login everybody who reaches the console is an administrator, and a read-only console or
cluster refuses every change. A change from a browser needs the token of the page (cross-site requests do not
have it).
"""

from __future__ import annotations

import hmac
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from starlette.requests import Request

from tidelog.console.errors import ApiError

if TYPE_CHECKING:
    from tidelog.console.api import Call

audit_log = logging.getLogger("tidelog.console.audit")

COOKIE: Final = "tidelog_console"
TOKEN_HEADER: Final = "x-csrf-token"
TOKEN_FIELD: Final = "csrf"


class Principal(Struct, frozen=True):
    """Who makes a request."""

    name: str
    is_anonymous: bool = True


ANONYMOUS: Final = Principal("anonymous")


class Access:
    """Decides about requests. `read_only` refuses every change."""

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._secret = secrets.token_bytes(32)

    def principal(self, request: Request) -> Principal:
        """Who makes the request. Raises ApiError 401 if a login is needed."""
        return ANONYMOUS

    def may(self, principal: Principal, action: str, resource: str = "") -> bool:
        """Whether pages offer an action to a principal."""
        return True

    def check(self, call: Call[Any, Any], action: str, *, changes: bool) -> None:
        """Raise ApiError 403 if the principal may not do this."""
        if changes and (self.read_only or call.cluster.read_only):
            raise ApiError(403, "READ_ONLY", "This console is read-only: it changes nothing.")

    # -- requests of other sites -------------------------------------------------------------------

    def visitor(self, request: Request) -> str:
        """The random id of the browser, which a cookie keeps; a new one for a first visit."""
        known = request.cookies.get(COOKIE, "")
        return known if len(known) == 43 and known.isascii() else secrets.token_urlsafe(32)

    def csrf_token(self, visitor: str) -> str:
        """The token that the pages of this visitor send with every change."""
        return hmac.new(self._secret, visitor.encode(), "sha256").hexdigest()

    def check_csrf(self, request: Request, given: str | None) -> None:
        """Raise ApiError 403 for a change from a browser without the token of its page.

        A program that is no browser sends neither cookies nor the headers of browsers, and needs no token.
        """
        headers = request.headers
        is_browser = any(name in headers for name in ("cookie", "origin", "sec-fetch-site", "referer"))
        if not is_browser:
            return
        wanted = self.csrf_token(request.cookies.get(COOKIE, ""))
        if not hmac.compare_digest(wanted.encode(), (given or "").encode()):
            raise ApiError(403, "CSRF", "The request has no valid token of a page: reload the page.")

    # -- the record of changes ---------------------------------------------------------------------

    def audit(self, call: Call[Any, Any], action: str, outcome: str) -> None:
        """Log a change: who, what, on which resource, with which outcome; never a value of a setting."""
        audit_log.info(
            "change",
            extra={
                "fields": {
                    "principal": call.principal.name,
                    "cluster": call.cluster.name,
                    "action": action,
                    "resource": "/".join(value for name, value in call.path.items() if name != "cluster"),
                    "outcome": outcome,
                }
            },
        )
