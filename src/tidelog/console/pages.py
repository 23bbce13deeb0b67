"""The frame of the pages: Jinja templates below `/clusters/{cluster}`, with the layout around them.

A module of an area has `PAGES` and may have `NAV`. A handler gets a `View` and returns `view.render(...)`.
Everything is escaped by the templates; scripts and styles come from `static/` alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from tidelog import __version__
from tidelog.console import formats
from tidelog.console.access import COOKIE, Access, Principal
from tidelog.console.api import segment
from tidelog.console.clusters import Cluster, Clusters
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.console")

TEMPLATES: Final = Path(__file__).parent / "templates"
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
YEAR_SECONDS: Final = 365 * 24 * 3600
SESSION_LOOK_SECONDS: Final = 1.0
"""How long a live page may outlive the session of its principal. It sends nothing in that time."""


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry of the navigation: `key` marks the current page, `shortcut` is the letter after `g`."""

    key: str
    label: str
    path: str
    shortcut: str


@dataclass(frozen=True, slots=True)
class TopicTab:
    """A tab of a topic's page at `/topics/{topic}` and `path`; `key` marks the current one."""

    key: str
    label: str
    path: str


@dataclass(slots=True)
class View:
    """One request of a page."""

    request: Request
    cluster: Cluster
    principal: Principal
    access: Access
    site: Site
    path: Mapping[str, str]

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def clusters(self) -> list[Cluster]:
        """The clusters that the principal may see."""
        return self.access.visible(self.principal, self.site.clusters)

    def link(self, *segments: object, **query: object) -> str:
        """The address of a page of this cluster: `view.link("topics", name, tab="settings")`."""
        path = "/".join(segment(str(part)) for part in ("clusters", self.cluster.name, *segments))
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def api(self, *segments: object) -> str:
        """The address of an endpoint of this cluster."""
        parts = ("api", "clusters", self.cluster.name, *segments)
        return "/" + "/".join(segment(str(part)) for part in parts)

    def here(self, **changed: object) -> str:
        """The address of this page with some query parameters changed; None removes one."""
        given: list[tuple[str, object]] = [
            (name, value) for name, value in self.request.query_params.multi_items() if name not in changed
        ]
        given = [(name, value) for name, value in (*given, *changed.items()) if value not in (None, "")]
        return self.request.url.path + (f"?{urlencode(given)}" if given else "")

    def may(self, action: str, resource: str = "") -> bool:
        """Whether to offer an action: not on a read-only console, and only to those who may."""
        if self.access.read_only or self.cluster.read_only:
            return False
        return self.access.may(self.principal, action, resource, self.cluster.name)

    def render(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """A page or a fragment of one as HTML."""
        visitor = self.access.visitor(self.request)
        text = self.site.templates.get_template(template).render(
            view=self,
            cluster=self.cluster,
            csrf=self.access.csrf_token(visitor),
            **context,
        )
        response = HTMLResponse(text, status)
        if self.request.cookies.get(COOKIE) != visitor:
            secure = self.access.is_secure(self.request)
            response.set_cookie(
                COOKIE, visitor, max_age=YEAR_SECONDS, httponly=True, samesite="strict", secure=secure
            )
        return response

    def fragment(self, template: str, **context: Any) -> str:
        """A part of a page as text, for an event of a live page."""
        return self.site.templates.get_template(template).render(view=self, cluster=self.cluster, **context)

    def live(self, events: AsyncIterator[LivePart]) -> Response:
        """Server-sent events. It ends when the console stops, or the session of the principal ends."""
        return StreamingResponse(
            self.site.until_ended(events, self.access, self.principal),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


LivePart = tuple[str, str] | bytes
"""An event's name and its data, or an event as `server_sent` makes it."""

PageHandler = Callable[[View], Awaitable[Response]]


def server_sent(name: str, data: str) -> bytes:
    """An event as text/event-stream."""
    return (f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Page:
    """A page at `/clusters/{cluster}` and `path`. `action` names the permission to see it.

    `media_types` marks a download, which programs get with the header Authorization, too. The description of
    the API has it, with the parameters of `queries`.
    """

    path: str
    handler: PageHandler
    methods: tuple[str, ...] = ("GET",)
    media_types: tuple[str, ...] = ()
    queries: tuple[type[Struct], ...] = ()
    action: str = field(kw_only=True)

    @property
    def is_file(self) -> bool:
        return bool(self.media_types)

    @property
    def full_path(self) -> str:
        return f"/clusters/{{cluster}}{self.path}"


@dataclass(slots=True)
class Site:
    """What all pages share: clusters, templates and the navigation."""

    clusters: Clusters
    nav: list[NavItem]
    topic_tabs: list[TopicTab] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    templates: jinja2.Environment = field(init=False)

    def __post_init__(self) -> None:
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.templates.filters.update(formats.FILTERS)
        self.templates.globals.update(site=self, version=__version__, segment=segment)

    async def until_ended(
        self, events: AsyncIterator[LivePart], access: Access, principal: Principal
    ) -> AsyncIterator[bytes]:
        """The events as text/event-stream, until the console stops, the browser goes or the session ends."""
        stopped = asyncio.ensure_future(self.stopping.wait())
        following: asyncio.Future[LivePart | None] | None = None
        look_after = None if principal.is_anonymous else SESSION_LOOK_SECONDS
        try:
            while not self.stopping.is_set() and access.is_alive(principal):
                following = following or asyncio.ensure_future(_following(events))
                either: list[asyncio.Future[Any]] = [following, stopped]
                await asyncio.wait(either, timeout=look_after, return_when=asyncio.FIRST_COMPLETED)
                if not following.done() or not access.is_alive(principal):
                    continue
                try:
                    event = following.result()
                except KafkaError as error:
                    log.debug("a live page ends: %s", error)  # its browser asks again
                    return
                if event is None:
                    return
                following = None
                yield event if isinstance(event, bytes) else server_sent(*event)
        finally:
            stopped.cancel()
            if following is not None and not following.cancel() and not following.cancelled():
                following.exception()  # nobody waits for it


async def _following(events: AsyncIterator[LivePart]) -> LivePart | None:
    """The next event, None after the last. Cancelling it ends the iterator."""
    return await anext(events, None)
