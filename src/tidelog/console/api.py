"""The frame of the JSON API: endpoints with typed queries, bodies and answers.

A module of an area has `ENDPOINTS`. Each endpoint is `/api/clusters/{cluster}` and its path. The body is
JSON, or a form of a page: a form gets `HX-Redirect` to its field `then` after success, with the sentence that
the page shows there in `HX-Trigger`, and a sentence as HTML after a failure.
"""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tidelog.console.access import TOKEN_FIELD, TOKEN_HEADER, Access, Principal
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.errors import ApiError, ErrorAnswer, ErrorBody, api_error, not_found
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.console")

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""A form sends each byte of a file of 4 MB as up to three: `%22`."""
FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"

Q = TypeVar("Q")
B = TypeVar("B")


@dataclass(slots=True)
class Call(Generic[Q, B]):
    """One request of an endpoint; `query` and `body` are of the types that the endpoint declares."""

    request: Request
    cluster: Cluster
    principal: Principal
    access: Access
    path: Mapping[str, str]
    query: Q
    body: B


Handler = Callable[[Call[Any, Any]], Awaitable[Struct]]


class ConfirmBody(Struct):
    """The name of the thing to delete, typed again."""

    confirm: Annotated[str, Meta(max_length=1000)]


class Done(Struct):
    """The answer of a change without other results."""

    message: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method and path of the API below `/api/clusters/{cluster}`, and who may call it.

    `action` names the permission (`topic.create`). An endpoint with `changes` needs the token of a page and
    is audited; a read-only console refuses it.
    """

    method: str
    path: str
    handler: Handler
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    answer: type[Struct] = Done
    changes: bool = False
    action: str = field(kw_only=True)

    @property
    def full_path(self) -> str:
        return f"/api/clusters/{{cluster}}{self.path}"

    @property
    def operation_id(self) -> str:
        return self.handler.__name__

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or self.operation_id).strip().splitlines()[0]


class Api:
    """Runs endpoints: cluster, principal, rights, token, validation, handler, answer, audit."""

    def __init__(self, clusters: Clusters, access: Access) -> None:
        self.clusters = clusters
        self.access = access

    async def serve(self, endpoint: Endpoint, request: Request) -> Response:
        is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
        then = ""
        try:
            form = await _form(request) if is_form else {}
            then = local_path(form.pop("then", ""))
            token = request.headers.get(TOKEN_HEADER) or form.pop(TOKEN_FIELD, None)
            form.pop(TOKEN_FIELD, None)
            answer = await self._run(endpoint, request, form if is_form else None, token)
        except ApiError as error:
            return _form_refused(error) if is_form else error_response(error)
        if is_form:
            return _form_done(answer, then)
        return json_response(answer)

    async def _run(
        self, endpoint: Endpoint, request: Request, form: dict[str, str] | None, token: str | None
    ) -> Struct:
        path = {name: str(value) for name, value in request.path_params.items()}
        principal = await self.access.authenticate(request)
        cluster = self.clusters.get(path["cluster"])
        if cluster is None:
            raise not_found(f"The cluster {path['cluster']}")
        cluster = await self.access.cluster_for(principal, cluster)
        call = Call[Any, Any](request, cluster, principal, self.access, path, None, None)
        if endpoint.changes:
            self.access.check_csrf(request, token, principal)
        self.access.check(call, endpoint.action, changes=endpoint.changes)
        call.query = parse_query(endpoint.query, request)
        if endpoint.body is not None:
            call.body = await _body(endpoint.body, request, form)
        outcome = "failed"
        try:
            answer = await endpoint.handler(call)
            outcome = "done"
            return answer
        except ApiError as error:
            outcome = error.code
            raise
        except KafkaError as error:
            outcome = type(error).__name__
            raise api_error(error) from error
        except Exception as error:
            log.exception("%s %s failed", endpoint.method, endpoint.full_path)
            raise ApiError(500, "INTERNAL", "The console failed; its log says why.") from error
        finally:
            if endpoint.changes:
                cluster.forget_snapshot()
                self.access.audit(call, endpoint.action, outcome)


def parse_query(kind: type[Struct] | None, request: Request) -> Any:
    """The query string as a struct. Raises ApiError 400 that names the wrong field."""
    if kind is None:
        return None
    lists = {field.encode_name for field in msgspec.structs.fields(kind) if _is_list(field.type)}
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            values.setdefault(name, []).append(value)
        elif value != "":
            values[name] = value
    return _converted(values, kind)


def _is_list(kind: Any) -> bool:
    """Whether a field takes several values: `list[int]`, also with limits (Annotated)."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(plain) in (list, tuple)


async def _form(request: Request) -> dict[str, str]:
    try:
        pairs = parse_qsl((await read_body(request)).decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise ApiError(400, "BAD_REQUEST", "The form cannot be read.") from None
    return dict(pairs)


async def _body(kind: type[Struct], request: Request, form: dict[str, str] | None) -> Struct:
    if form is not None:
        return _converted({name: value for name, value in form.items() if value != ""}, kind)
    content_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if content_type != JSON:
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", f"The body must be {JSON}, not {content_type}.")
    data = await read_body(request)
    try:
        decoded: Struct = msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "BAD_REQUEST", f"The body is not right: {error}") from None
    return decoded


async def read_body(request: Request) -> bytes:
    """The whole body; ApiError 413 above MAX_BODY_BYTES."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(413, "TOO_LARGE", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        parts.append(part)
    return b"".join(parts)


def _converted(values: dict[str, Any], kind: type[Struct]) -> Struct:
    try:
        converted: Struct = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(400, "BAD_REQUEST", f"The request is not right: {error}") from None
    return converted


def local_path(path: str) -> str:
    """A path of this console, or "": a form must not lead to another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else ""


def json_response(answer: Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type=JSON)


def error_response(error: ApiError) -> Response:
    response = json_response(ErrorAnswer(ErrorBody(error.code, error.message)), error.status)
    response.headers.update(error.headers)
    return response


def _form_done(answer: Struct, then: str) -> Response:
    """Leads to the page `then`, or loads the same page again; there the page shows the answer's message."""
    headers = {"HX-Redirect": then} if then else {"HX-Refresh": "true"}
    message = getattr(answer, "message", "")
    if message:
        headers["HX-Trigger"] = json.dumps({"done": {"message": message}})
    return Response(status_code=204, headers=headers)


def _form_refused(error: ApiError) -> HTMLResponse:
    text = f'<p class="error" role="alert">{html.escape(error.message)}</p>'
    return HTMLResponse(text, error.status, error.headers)


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")
