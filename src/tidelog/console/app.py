"""The application: routes of the API, the pages and the static files, and the headers of every answer."""

from __future__ import annotations

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
        await rights.authenticate(request)
        return json_response(ClusterList([_item(cluster) for cluster in clusters]))

    async def home(_: Request) -> Response:
        alone = f"/clusters/{segment(clusters.first.name)}"
        return RedirectResponse("/clusters" if len(clusters) > 1 else alone)

    async def all_clusters(request: Request) -> Response:
        principal = rights.principal(request)
        shown = [cluster for cluster in clusters if rights.may(principal, "view", "", cluster.name)]
        return View(request, clusters.first, principal, rights, site, {}).render("clusters.html", shown=shown)

    def page_route(page: Page) -> Route:
        return Route(page.full_path, partial(_serve_page, site, rights, page), methods=list(page.methods))

    routes: list[BaseRoute] = [
        Route("/", home),
        Route("/clusters", all_clusters),
        Route("/api/openapi.json", openapi),
        Route("/api/clusters", cluster_list),
        *login_routes(site, rights),
        *_api_routes(api, endpoints),
        *(page_route(page) for page in areas.pages()),
        Mount("/static", StaticFiles(directory=STATIC)),
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
    return app


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
    request.state.is_file = page.is_file
    path = {name: str(value) for name, value in request.path_params.items()}
    cluster = site.clusters.get(path["cluster"])
    if cluster is None:
        raise not_found(f"The cluster {path['cluster']}")
    principal = await access.authenticate(request) if page.is_file else access.principal(request)
    access.check_role(principal, cluster.name, page.action, path)
    bound = await access.cluster_for(principal, cluster)
    return await page.handler(View(request, bound, principal, access, site, path))


def _failed(site: Site, access: Access, request: Request, error: ApiError) -> Response:
    """The error as JSON for the API and for programs that ask for a file, as a page for people."""
    if request.url.path.startswith(("/api/", "/static/")) or _is_file_of_program(request):
        return error_response(error)
    name = request.path_params.get("cluster", "")
    cluster = site.clusters.get(str(name)) or site.clusters.first
    try:
        principal = access.principal(request)
    except ApiError:
        is_program = HEADER in request.headers and error.code != "LOGIN_NEEDED"
        return error_response(error) if is_program else to_login(request)
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
