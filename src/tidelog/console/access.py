"""Access: who may do what on the console, and the record of every change.

Without a configured login everybody who reaches the console is an administrator. A read-only console or
cluster refuses every change. A change from a browser needs the token of its page. Every change, every refused
change and every login is in the audit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidelog.console.access_file import AccessSettings
from tidelog.console.api_credentials import HEADER, ApiCredentials
from tidelog.console.audit import audit
from tidelog.console.csrf import COOKIE as COOKIE
from tidelog.console.csrf import TOKEN_FIELD as TOKEN_FIELD
from tidelog.console.csrf import TOKEN_HEADER as TOKEN_HEADER
from tidelog.console.csrf import CsrfGuard, check_origin
from tidelog.console.errors import ApiError
from tidelog.console.logins import ScramLogin
from tidelog.console.oidc import OidcLogin
from tidelog.console.roles import needed_role
from tidelog.console.sessions import Identity, Session, Sessions, without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidelog.console.api import Call
    from tidelog.console.clusters import Cluster
    from tidelog.console.principal_cluster import PrincipalCluster

BACKGROUND_HEADER: Final = "x-background"
"""Sent by pages that renew themselves: nobody is there to use the session."""
EXPIRE_SECONDS: Final = 30.0
RESOURCES: Final = ("topic", "group")
AREAS: Final = {"records": "topic", "analysis": "topic"}


@dataclass(slots=True, frozen=True)
class Principal:
    """Who makes a request. `session_id` is a secret.

    `is_program` marks a request whose own header has the credentials, which no browser adds by itself.
    """

    name: str
    is_anonymous: bool = True
    groups: tuple[str, ...] = ()
    session_id: str = field(default="", repr=False)
    is_program: bool = False


ANONYMOUS: Final = Principal("anonymous")


class Access:
    """Decides about requests. `read_only` refuses every change, `settings` has logins and roles."""

    def __init__(self, *, read_only: bool = False, settings: AccessSettings | None = None) -> None:
        self.read_only = read_only
        self.settings = settings or AccessSettings()
        self._csrf = CsrfGuard()
        self.sessions = Sessions(
            idle_seconds=self.settings.idle_seconds,
            max_seconds=self.settings.max_seconds,
            on_end=self._session_ended,
        )
        self.oidc = None if self.settings.oidc is None else OidcLogin(self.settings.oidc)
        self._scram: ScramLogin | None = None
        self.login_cluster: Cluster | None = None
        """The cluster whose users log in; the client settings of logins are for it."""
        self.programs = ApiCredentials(self.sessions, self.scram, self.oidc, self.audit_login)
        self._clusters: dict[tuple[str, str], PrincipalCluster] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._expiring: asyncio.Task[None] | None = None

    @property
    def needs_login(self) -> bool:
        return self.settings.needs_login

    # -- who -----------------------------------------------------------------------------------------

    def principal(self, request: Request) -> Principal:
        """Who makes the request, by the cookie of a session. Raises ApiError 401 if a login is needed."""
        if not self.needs_login:
            return ANONYMOUS
        session = self.sessions.find(request.cookies.get(COOKIE, ""), is_used=_is_used(request))
        if session is None:
            raise ApiError(401, "LOGIN_NEEDED", "Log in first: the session has ended, or there was none.")
        return Principal(session.identity.name, False, session.identity.groups, session.session_id)

    async def authenticate(self, request: Request) -> Principal:
        """Who makes a request of the API: by the cookie of a session, or else by the header Authorization.

        The cookie counts first, so that a header beside it cannot make a request of a browser look like one
        of a program. Raises ApiError 401 that tells a program how to log in.
        """
        try:
            return self.principal(request)
        except ApiError as error:
            if HEADER not in request.headers:
                error.headers = self.programs.challenges(request)
                raise
        session = await self.programs.session(request, is_used=_is_used(request))
        identity = session.identity
        return Principal(identity.name, False, identity.groups, session.session_id, is_program=True)

    def scram(self) -> ScramLogin | None:
        """The login with user and password; None if there is none."""
        settings = self.settings.scram
        if settings is None or self.login_cluster is None:
            return None
        if self._scram is None:
            own = without_login(self.login_cluster.client_settings)
            self._scram = ScramLogin({**own, **settings.client}, settings.mechanisms)
        return self._scram

    def begin_session(self, identity: Identity, request: Request, response: Response) -> Session:
        """Log in: a new session, whose id replaces the cookie of the browser."""
        self.sessions.end(request.cookies.get(COOKIE, ""))
        session = self.sessions.begin(identity)
        secure = self.is_secure(request)
        response.set_cookie(COOKIE, session.session_id, httponly=True, samesite="lax", secure=secure)
        return session

    def is_secure(self, request: Request) -> bool:
        """Whether the browser uses TLS, to this process or to a proxy in front of it."""
        return request.url.scheme == "https" or self.settings.public_url.startswith("https://")

    def is_alive(self, principal: Principal) -> bool:
        """Whether a live page of the principal may go on."""
        return principal.is_anonymous or self.sessions.is_alive(principal.session_id)

    # -- what ----------------------------------------------------------------------------------------

    def may(self, principal: Principal, action: str, resource: str = "", cluster: str = "") -> bool:
        """Whether a principal may do an action; `resource` is a name such as topic:orders."""
        if principal.is_anonymous:
            return True
        named = resource if not resource or ":" in resource else f"{_kind(action)}:{resource}"
        roles = self.settings.roles
        return roles.may(principal.name, principal.groups, action, cluster, named)

    def visible(self, principal: Principal, clusters: Iterable[Cluster]) -> list[Cluster]:
        """The clusters of which a principal may see something."""
        return [cluster for cluster in clusters if self.may(principal, "view", "", cluster.name)]

    def check(self, call: Call[Any, Any], action: str, *, changes: bool) -> None:
        """Raise ApiError 403 if the principal may not do this. A refused change is audited."""
        try:
            if changes and (self.read_only or call.cluster.read_only):
                raise ApiError(403, "READ_ONLY", "This console is read-only: it changes nothing.")
            self.check_role(call.principal, call.cluster.name, action, call.path)
        except ApiError as error:
            if changes:
                self.audit(call, action, error.code)
            raise

    def check_role(self, principal: Principal, cluster: str, action: str, path: Mapping[str, str]) -> None:
        """Raise ApiError 403 if no role of the principal allows the action on the resource of a path."""
        resource = resource_of(path)
        if self.may(principal, action, resource, cluster):
            return
        on = f" on {resource}" if resource else " on the whole cluster"
        role = needed_role(action).name.lower()
        raise ApiError(403, "NOT_ALLOWED", f"{principal.name} may not do {action}{on}: that needs {role}.")

    async def cluster_for(self, principal: Principal, cluster: Cluster) -> Cluster:
        """The cluster as the principal sees it: with the principal's credentials and roles."""
        if principal.is_anonymous:
            return cluster
        key = (principal.session_id, cluster.name)
        found = self._clusters.get(key)
        if found is None:
            found = self._bound(principal, cluster)
            await found.prepare()
            kept = self._clusters.setdefault(key, found)
            if kept is not found:
                await found.close()
            elif not self.is_alive(principal):
                self._clusters.pop(key)
                await found.close()
            found = kept
        return found

    def _bound(self, principal: Principal, cluster: Cluster) -> PrincipalCluster:
        from tidelog.console.principal_cluster import PrincipalCluster

        roles = self.settings.roles
        name, groups = principal.name, principal.groups
        session = self.sessions.find(principal.session_id)
        credentials = {} if session is None else dict(session.identity.credentials)
        by = self.settings.oidc if "sasl.oauth.token.provider" in credentials else self.settings.scram
        at = self.login_cluster
        if credentials and by is not None and at is not None and cluster.name == at.name:
            credentials = {**by.client, **credentials}
        protocol = str({**cluster.client_settings, **credentials}.get("security.protocol", "PLAINTEXT"))
        if not protocol.upper().startswith("SASL"):
            credentials = {}  # nobody logs in at this cluster: roles alone decide
        if roles.sees_all(name, groups, cluster.name):
            return PrincipalCluster(cluster, credentials, None)
        return PrincipalCluster(
            cluster, credentials, lambda each: roles.may(name, groups, "any.view", cluster.name, each)
        )

    def _session_ended(self, session: Session) -> None:
        self.programs.forget(session)
        for key in [key for key in self._clusters if key[0] == session.session_id]:
            task = asyncio.get_running_loop().create_task(self._clusters.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def start(self) -> None:
        """End sessions when their time is over, also while nobody asks for anything."""
        if self.needs_login and self._expiring is None:
            self._expiring = asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self.sessions.expire()

    async def close(self) -> None:
        """End all sessions, and close their clients."""
        if self._expiring is not None:
            self._expiring.cancel()
        self.sessions.close()
        if self._closing:
            await asyncio.wait(self._closing)

    # -- requests of other sites -------------------------------------------------------------------

    def visitor(self, request: Request) -> str:
        """The random id of the browser, which a cookie keeps; a new one for a first visit."""
        return self._csrf.visitor(request.cookies)

    def csrf_token(self, visitor: str) -> str:
        """The token that the pages of this visitor send with every change."""
        return self._csrf.token(visitor)

    def check_csrf(self, request: Request, given: str | None, principal: Principal = ANONYMOUS) -> None:
        """Raise ApiError 403 for a change from a browser without the token of its page.

        A program with credentials of its own needs no token, but must not be a page of another site.
        """
        if principal.is_program:
            check_origin(request.headers)
        else:
            self._csrf.check(request.headers, request.cookies, given)

    # -- the record of changes ---------------------------------------------------------------------

    def audit(self, call: Call[Any, Any], action: str, outcome: str) -> None:
        """Log a change: who, what, on which resource, with which outcome; never a value of a setting."""
        audit(
            "change",
            principal=call.principal.name,
            address=address_of(call.request),
            action=action,
            cluster=call.cluster.name,
            resource="/".join(value for name, value in call.path.items() if name != "cluster"),
            outcome=outcome,
        )

    def audit_login(self, request: Request, principal: str, action: str, outcome: str) -> None:
        audit(
            "login",
            principal=principal,
            address=address_of(request),
            action=action,
            cluster="",
            resource="",
            outcome=outcome,
        )


def _is_used(request: Request) -> bool:
    return BACKGROUND_HEADER not in request.headers


def address_of(request: Request) -> str:
    """The address of the client. Headers of proxies do not count: anybody can send them."""
    return "" if request.client is None else request.client.host


def resource_of(path: Mapping[str, str]) -> str:
    """The resource that a path names, such as topic:orders; "" for none."""
    for kind in RESOURCES:
        if kind in path:
            return f"{kind}:{path[kind]}"
    return ""


def _kind(action: str) -> str:
    area = action.partition(".")[0]
    return AREAS.get(area, area)
