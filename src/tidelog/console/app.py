"""The application: routes of the API, the pages and the static files, and the headers of every answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.console import areas
from tidelog.console.access import Access
from tidelog.console.allowed_hosts import AllowedHosts, host_name
from tidelog.console.api import JSON, Api, Endpoint, error_response, json_response, segment
from tidelog.console.api_credentials import HEADER
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.errors import ApiError, api_error, not_found
from tidelog.console.openapi import describe
from tidelog.console.pages import SECURITY_HEADERS, Page, Site, View
from tidelog.console.pages_login import login_routes, to_login
from tidelog.console.pipeline_alerts import AlertDigests
from tidelog.console.records.rules import RecordRules
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.console")

OPEN: Final = "open"
"""The permission of what everybody gets: the login, the description of the API, and static files."""

FILTERED: Final = "filtered"
"""The permission of lists of clusters, which everybody who has logged in gets for the own roles."""

STATIC: Final = Path(__file__).parent / "static"
MOST_SHOWN: Final = 100
"""Characters of a refused host name that the answer repeats."""


class ClusterItem(Struct):
    name: str
    colour: str
    read_only: bool
    is_local: bool


class ClusterList(Struct):
    clusters: list[ClusterItem]


def make_app(
    clusters: Clusters,
    access: Access | None = None,
    *,
    rules: RecordRules | None = None,
    allowed_hosts: AllowedHosts | None = None,
) -> Starlette:
    """The console as an ASGI application. It answers under the names of `allowed_hosts` alone."""
    rights = access or Access()
    site = Site(clusters, areas.nav(), areas.topic_tabs())
    api = Api(clusters, rights)
    endpoints = areas.endpoints()
    files = [page for page in areas.pages() if page.is_file]
    document = msgspec.json.encode(describe(endpoints, ClusterList, files))

    async def openapi(_: Request) -> Response:
        return Response(document, media_type=JSON)

    async def cluster_list(request: Request) -> Response:
        shown = rights.visible(await rights.authenticate(request), clusters)
        return json_response(ClusterList([_item(cluster) for cluster in shown]))

    async def home(request: Request) -> Response:
        shown = rights.visible(rights.principal(request), clusters)
        return RedirectResponse(f"/clusters/{segment(shown[0].name)}" if len(shown) == 1 else "/clusters")

    async def all_clusters(request: Request) -> Response:
        view = View(request, clusters.first, rights.principal(request), rights, site, {})
        return view.render("clusters.html", shown=view.clusters)

    def page_route(page: Page) -> Route:
        return Route(page.full_path, partial(_serve_page, site, rights, page), methods=list(page.methods))

    open_routes: list[Route | Mount] = [
        Route("/api/openapi.json", openapi),
        *login_routes(site, rights),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    filtered_routes: list[Route | Mount] = [
        Route("/", home),
        Route("/clusters", all_clusters),
        Route("/api/clusters", cluster_list),
    ]
    permissions = {
        **_permissions(open_routes, OPEN),
        **_permissions(filtered_routes, FILTERED),
        **{(method, page.full_path): page.action for page in areas.pages() for method in page.methods},
        **{(endpoint.method, endpoint.full_path): endpoint.action for endpoint in endpoints},
    }
    routes: list[BaseRoute] = [
        *filtered_routes,
        *open_routes,
        *_api_routes(api, endpoints),
        *(page_route(page) for page in areas.pages()),
    ]

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refused = ApiError(error.status_code, error.detail.upper().replace(" ", "_"), f"{error.detail}.")
        response = _failed(site, rights, request, refused)
        response.headers.update(error.headers or {})
        return response

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _failed(site, rights, request, error)

    async def on_kafka_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, KafkaError)
        return _failed(site, rights, request, api_error(error))

    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, allowed_hosts=allowed_hosts or AllowedHosts())],
        exception_handlers={
            HTTPException: on_http_error,
            ApiError: on_api_error,
            KafkaError: on_kafka_error,
        },
    )
    app.state.site = site
    app.state.rules = rules or RecordRules()
    app.state.access = rights
    app.state.alerts = AlertDigests()
    app.state.permissions = permissions
    return app


def _permissions(routes: Iterable[Route | Mount], permission: str) -> dict[tuple[str, str], str]:
    """The permission of each method and path of some routes."""
    return {(method, route.path): permission for route in routes for method in methods_of(route)}


def methods_of(route: Route | Mount) -> set[str]:
    """The methods of a route but HEAD, which is GET without the body."""
    return {"GET"} if isinstance(route, Mount) else (route.methods or set()) - {"HEAD"}


def _api_routes(api: Api, endpoints: list[Endpoint]) -> list[Route]:
    """One route for each path, so that another method gets 405 and the allowed methods."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.full_path, {})[endpoint.method] = endpoint

    def serve(methods: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        async def served(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await api.serve(methods[method], request)

        return served

    return [Route(path, serve(methods), methods=list(methods)) for path, methods in by_path.items()]


async def _serve_page(site: Site, access: Access, page: Page, request: Request) -> Response:
    """The page, or the error as a page with all headers, also for one that nobody expected."""
    try:
        return await _page_of(site, access, page, request)
    except (ApiError, KafkaError, HTTPException):
        raise
    except Exception as error:
        log.exception("%s %s failed", request.method, page.full_path)
        raise ApiError(500, "INTERNAL", "The console failed; its log says why.") from error


async def _page_of(site: Site, access: Access, page: Page, request: Request) -> Response:
    request.state.is_file = page.is_file
    path = {name: str(value) for name, value in request.path_params.items()}
    principal = await access.authenticate(request) if page.is_file else access.principal(request)
    cluster = site.clusters.get(path["cluster"])
    if cluster is None:
        raise not_found(f"The cluster {path['cluster']}")
    access.check_role(principal, cluster.name, page.action, path)
    bound = await access.cluster_for(principal, cluster)
    return await page.handler(View(request, bound, principal, access, site, path))


def _failed(site: Site, access: Access, request: Request, error: ApiError) -> Response:
    """The error as JSON for the API and for programs that ask for a file, as a page for people."""
    if request.url.path.startswith(("/api/", "/static/")) or _is_file_of_program(request):
        return error_response(error)
    try:
        principal = access.principal(request)
    except ApiError:
        is_program = HEADER in request.headers and error.code != "LOGIN_NEEDED"
        return error_response(error) if is_program else to_login(request)
    name = str(request.path_params.get("cluster", ""))
    shown = access.visible(principal, site.clusters)
    cluster = site.clusters.get(name) or next(iter(shown), site.clusters.first)
    view = View(request, cluster, principal, access, site, {})
    return view.render("error.html", status=error.status, error=error)


def _is_file_of_program(request: Request) -> bool:
    """Whether a program asks for a file: a browser asks for text/html, too, wherever a link leads."""
    is_file = bool(getattr(request.state, "is_file", False))
    return is_file and "text/html" not in request.headers.get("accept", "")


def _item(cluster: Cluster) -> ClusterItem:
    return ClusterItem(cluster.name, cluster.colour, cluster.read_only, cluster.local is not None)


class Guard:
    """Adds the security headers to every answer, and refuses requests under a foreign host name."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: AllowedHosts) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts
        self._headers = [(name.lower().encode(), text.encode()) for name, text in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[tuple[bytes, bytes]] = message["headers"]
                given = {name.lower() for name, _ in headers}
                headers += [header for header in self._headers if header[0] not in given]
                if is_static:
                    headers.append((b"cache-control", b"max-age=3600"))
                elif not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
            await send(message)

        host = Request(scope).headers.get("host", "")
        if not self._allowed_hosts.allows(host, str((scope.get("server") or ("",))[0])):
            await error_response(_wrong_host(host))(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _wrong_host(host: str) -> ApiError:
    name = "".join(char for char in host_name(host)[:MOST_SHOWN] if char.isprintable())
    return ApiError(
        421,
        "WRONG_HOST",
        f"This console does not answer under the name {name!r}. If it is a name of the console, add it"
        " to console.allowed.hosts of the broker, or give --allowed-host to tidelog console.",
    )
