"""Login and logout: a form for user and password, and the two steps of OpenID Connect."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from tidelog.console.access import COOKIE, TOKEN_FIELD, Access
from tidelog.console.api import local_path, read_body
from tidelog.console.errors import ApiError
from tidelog.console.logins import LONGEST_USER

if TYPE_CHECKING:
    from tidelog.console.pages import Site

OIDC_COOKIE: Final = "tidelog_oidc"
OIDC_PATH: Final = "/login/oidc"
OIDC_SECONDS: Final = 600


def login_routes(site: Site, access: Access) -> list[Route]:
    """The routes of a console with a login; none without."""
    if not access.needs_login:
        return []
    pages = LoginPages(site, access)
    return [
        Route("/login", pages.form, methods=["GET"]),
        Route("/login", pages.login, methods=["POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
        Route(OIDC_PATH, pages.begin_oidc, methods=["POST"]),
        Route(f"{OIDC_PATH}/callback", pages.finish_oidc, methods=["GET"]),
    ]


def to_login(request: Request) -> Response:
    """The answer for a page that needs a login: the form, which leads back to the page."""
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    comes_back = request.method == "GET" and len(where) < 2000
    target = f"/login?then={quote(where, safe='')}" if comes_back else "/login"
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": "/login"})
    return RedirectResponse(target, 303)


class LoginPages:
    """The pages that need no session."""

    def __init__(self, site: Site, access: Access) -> None:
        self._site = site
        self._access = access
        access.login_cluster = site.clusters.first

    async def form(self, request: Request) -> Response:
        return self._form(request, local_path(request.query_params.get("then", "")), "", 200)

    async def login(self, request: Request) -> Response:
        """Check user and password, and begin a session."""
        form = await _read_form(request)
        then = local_path(form.get("then", ""))
        user = form.get("user", "")
        try:
            self._access.check_csrf(request, form.get(TOKEN_FIELD))
            scram = self._access.scram()
            if scram is None:
                raise ApiError(404, "NOT_FOUND", "This console has no login with a password.")
            address = "" if request.client is None else request.client.host
            identity = await scram.login(user, form.get("password", ""), address)
        except ApiError as error:
            self._access.audit_login(request, f"User:{user}", "login.scram", error.code)
            refused = self._form(request, then, error.message, error.status, user=user)
            refused.headers.update(error.headers)
            return refused
        response = RedirectResponse(then or "/", 303)
        self._access.begin_session(identity, request, response)
        self._access.audit_login(request, identity.name, "login.scram", "done")
        return response

    async def logout(self, request: Request) -> Response:
        form = await _read_form(request)
        principal = self._access.principal(request)
        self._access.check_csrf(request, form.get(TOKEN_FIELD))
        self._access.sessions.end(principal.session_id)
        self._access.audit_login(request, principal.name, "logout", "done")
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    async def begin_oidc(self, request: Request) -> Response:
        """Send the browser to the provider."""
        form = await _read_form(request)
        self._access.check_csrf(request, form.get(TOKEN_FIELD))
        if self._access.oidc is None:
            raise ApiError(404, "NOT_FOUND", "This console has no login at a provider.")
        callback = f"{request.url.scheme}://{request.url.netloc}{OIDC_PATH}/callback"
        begun = await self._access.oidc.begin(callback, local_path(form.get("then", "")))
        # A form must not be redirected to another site: its Content-Security-Policy has form-action 'self'.
        address = html.escape(begun.url, quote=True)
        response = HTMLResponse(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Login</title>'
            f'<meta http-equiv="refresh" content="0;url={address}"></head>'
            f'<body><p><a href="{address}">To the login</a></p></body></html>'
        )
        response.set_cookie(
            OIDC_COOKIE,
            begun.key,
            max_age=OIDC_SECONDS,
            path=OIDC_PATH,
            httponly=True,
            samesite="lax",  # the provider's redirect has to bring it back
            secure=self._access.is_secure(request),
        )
        return response

    async def finish_oidc(self, request: Request) -> Response:
        """The provider's answer: begin a session."""
        if self._access.oidc is None:
            raise ApiError(404, "NOT_FOUND", "This console has no login at a provider.")
        try:
            identity, then = await self._access.oidc.finish(
                dict(request.query_params), request.cookies.get(OIDC_COOKIE, "")
            )
        except ApiError as error:
            self._access.audit_login(request, "unknown", "login.oidc", error.code)
            return self._form(request, "", error.message, error.status)
        response = RedirectResponse(then or "/", 303)
        self._access.begin_session(identity, request, response)
        response.delete_cookie(OIDC_COOKIE, path=OIDC_PATH)
        self._access.audit_login(request, identity.name, "login.oidc", "done")
        return response

    def _form(
        self, request: Request, then: str, problem: str, status: int, *, user: str = ""
    ) -> HTMLResponse:
        """The form; after a refused login with the name of the user as it was typed."""
        visitor = self._access.visitor(request)
        text = self._site.templates.get_template("login.html").render(
            csrf=self._access.csrf_token(visitor),
            then=then,
            problem=problem,
            user=user[:LONGEST_USER],
            has_password=self._access.settings.scram is not None,
            has_provider=self._access.oidc is not None,
        )
        response = HTMLResponse(text, status)
        if request.cookies.get(COOKIE) != visitor:
            secure = self._access.is_secure(request)
            response.set_cookie(COOKIE, visitor, httponly=True, samesite="lax", secure=secure)
        return response


async def _read_form(request: Request) -> dict[str, str]:
    try:
        return dict(parse_qsl((await read_body(request)).decode(), max_num_fields=20))
    except ValueError:
        raise ApiError(400, "BAD_REQUEST", "The form cannot be read.") from None
