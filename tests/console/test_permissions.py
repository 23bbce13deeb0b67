"""Every route of the console has a permission and asks for it: login, role, resource, token, read-only."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from tidelog.console import areas
from tidelog.console.access import Access
from tidelog.console.access_file import AccessSettings, ScramSettings
from tidelog.console.app import FILTERED, OPEN, make_app, methods_of
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.csrf import COOKIE, TOKEN_HEADER
from tidelog.console.pages import SECURITY_HEADERS, Page, View
from tidelog.console.roles import OPERATOR_ACTIONS, WHOLE_CLUSTER, Grant, Role, Roles, needed_role
from tidelog.console.sessions import Identity

ADMIN_ACTIONS = {"acl.edit", "analysis.run", "cluster.reassign", "quota.edit", "topic.delete", "user.edit"}
QUESTIONS = {"/api/clusters/{cluster}/topics/{topic}/records/test-filter"}
"""What is asked by POST, as a filter is too long for an address, and changes nothing."""

NEVER_ASKED = {"bootstrap.servers": "127.0.0.1:1"}
ROLES = Roles(
    (
        Grant(Role.VIEWER, ("User:viewer",), clusters=("north",)),
        Grant(Role.OPERATOR, ("User:own",), clusters=("north",), resources=("topic:own*", "group:own*")),
        Grant(Role.ADMIN, ("User:admin",)),
    )
)


def new_app(*, read_only: bool = False) -> Starlette:
    access = Access(read_only=read_only, settings=AccessSettings(ScramSettings(), roles=ROLES))
    return make_app(Clusters([Cluster("north", NEVER_ASKED), Cluster("south", NEVER_ASKED)]), access)


APP = new_app()
PERMISSIONS: dict[tuple[str, str], str] = APP.state.permissions
GUARDED = {key: action for key, action in PERMISSIONS.items() if action not in (OPEN, FILTERED)}
CHANGES = {(each.method, each.full_path): each.action for each in areas.endpoints() if each.changes}


def asked(
    method: str, path: str, user: str = "", *, has_token: bool = True, app: Starlette = APP
) -> httpx.Response:
    """The answer for a browser with a session of this user. The topic and the group are of others."""
    url = re.sub(r"{cluster}", "north", path)
    url = re.sub(r"{(topic|group)(:path)?}", "others", url)
    url = re.sub(r"{\w+}", "0", url)

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        headers = {"sec-fetch-site": "same-origin", "accept": "text/html"}
        cookies = {}
        access: Access = app.state.access
        if user:
            session = access.sessions.begin(Identity(f"User:{user}"))
            cookies[COOKIE] = session.session_id
            if has_token:
                headers[TOKEN_HEADER] = access.csrf_token(session.session_id)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", cookies=cookies, headers=headers
        ) as client:
            return await client.request(method, url)

    return asyncio.run(answer())


def code_of(answer: httpx.Response) -> str:
    """The code of an error of the API; the status of a page, which has a sentence."""
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return str(answer.json()["error"]["code"]) if is_json else str(answer.status_code)


def test_every_route_declares_its_permission() -> None:
    routes = [route for route in APP.routes if isinstance(route, Route | Mount)]
    assert len(routes) == len(APP.routes)
    served = {(method, route.path) for route in routes for method in methods_of(route)}
    assert served == PERMISSIONS.keys()
    known = OPERATOR_ACTIONS | ADMIN_ACTIONS
    for action in GUARDED.values():
        assert action.endswith(".view") or action in known, action
    assert set(GUARDED.values()) >= WHOLE_CLUSTER | ADMIN_ACTIONS


def test_what_is_open_shows_nothing_of_a_cluster() -> None:
    assert {path for (_, path), action in PERMISSIONS.items() if action == OPEN} == {
        "/api/openapi.json",
        "/login",
        "/login/oidc",
        "/login/oidc/callback",
        "/logout",
        "/static",
    }
    for method, path in (("GET", "/login"), ("GET", "/"), ("GET", "/clusters"), ("GET", "/api/clusters")):
        answer = asked(method, path)
        assert "north" not in answer.text + answer.headers.get("location", "")


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_nobody_gets_in_without_a_login(method: str, path: str) -> None:
    answer = asked(method, path)
    if path.startswith("/api/"):
        assert (answer.status_code, code_of(answer)) == (401, "LOGIN_NEEDED")
    else:
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?then=")


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_role_that_is_too_small_is_refused(method: str, path: str) -> None:
    assert code_of(asked(method, path, "nobody")) in ("NOT_ALLOWED", "403")
    if needed_role(GUARDED[method, path]) > Role.VIEWER:
        assert code_of(asked(method, path, "viewer")) in ("NOT_ALLOWED", "403")
    if "{topic}" in path or "{group:path}" in path or GUARDED[method, path] in WHOLE_CLUSTER:
        assert code_of(asked(method, path, "own")) in ("NOT_ALLOWED", "403")
    other = path.replace("{cluster}", "south")
    assert code_of(asked(method, other, "viewer")) in ("NOT_ALLOWED", "403")


@pytest.mark.parametrize("path", sorted({path for _, path in GUARDED}))
def test_the_names_of_clusters_are_not_to_be_guessed(path: str) -> None:
    method = next(method for method, each in GUARDED if each == path)
    known, unknown = asked(method, path), asked(method, path.replace("{cluster}", "three"))
    assert known.status_code == unknown.status_code
    assert known.text == unknown.text


def test_every_method_but_get_is_a_change() -> None:
    others = {path for method, path in GUARDED if method != "GET" and (method, path) not in CHANGES}
    assert others == QUESTIONS
    assert not [path for method, path in CHANGES if method == "GET"]


@pytest.fixture(scope="module")
def read_only() -> Starlette:
    return new_app(read_only=True)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_change_needs_a_token_and_a_console_that_is_not_read_only(
    method: str, path: str, read_only: Starlette
) -> None:
    assert code_of(asked(method, path, "admin", has_token=False)) == "CSRF"
    assert code_of(asked(method, path, "admin", app=read_only)) == "READ_ONLY"


def test_a_page_that_fails_says_so_with_all_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(_: View) -> Response:
        raise ZeroDivisionError("a secret of the process")

    monkeypatch.setattr(areas, "pages", lambda: [Page("/broken", failing, action="topic.view")])
    answer = asked("GET", "/clusters/{cluster}/broken", "viewer", app=new_app())
    assert answer.status_code == 500
    assert "its log says why" in answer.text
    assert "secret" not in answer.text
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_clusters_are_listed_by_role() -> None:
    def names(user: str) -> list[str]:
        return [found["name"] for found in asked("GET", "/api/clusters", user).json()["clusters"]]

    assert names("admin") == ["north", "south"]
    assert names("viewer") == names("own") == ["north"]
    assert names("nobody") == []
    assert asked("GET", "/", "viewer").headers["location"] == "/clusters/north"
    assert asked("GET", "/", "admin").headers["location"] == "/clusters"
    assert 'href="/clusters/south"' not in asked("GET", "/clusters", "viewer").text
    # The menu of a page, here of one that says that the path does not exist.
    assert 'href="/clusters/south"' in asked("GET", "/clusters/north/no-such-page", "admin").text
    assert 'href="/clusters/south"' not in asked("GET", "/clusters/north/no-such-page", "viewer").text
