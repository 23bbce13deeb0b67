"""The OpenAPI description of the API, made from the endpoints and their types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct

from tidelog import __version__
from tidelog.console.api import JSON, Endpoint
from tidelog.console.errors import ErrorAnswer
from tidelog.console.pages import Page

REF: Final = "#/components/schemas/{name}"
# The logins of programs. Pages use the cookie of a session, and the token of a page for changes.
SECURITY_SCHEMES: Final = {
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "A user and password of SCRAM, where the console has that login.",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "An access token of the OpenID Connect provider, where the console has one.",
    },
}


def describe(
    endpoints: Iterable[Endpoint], cluster_list: type[Struct], files: Iterable[Page] = ()
) -> dict[str, Any]:
    """An OpenAPI 3.1 document: the list of clusters, the endpoints of a cluster, and the files of pages."""
    listed = list(endpoints)
    kinds: set[type[Struct]] = {ErrorAnswer, cluster_list}
    for endpoint in listed:
        kinds |= {kind for kind in (endpoint.body, endpoint.answer) if kind is not None}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=REF)
    of = dict(zip(ordered, schemas, strict=True))
    error = {"description": "Why it failed.", "content": {JSON: {"schema": of[ErrorAnswer]}}}
    content = {JSON: {"schema": of[cluster_list]}}
    paths: dict[str, Any] = {
        "/api/clusters": {
            "get": _operation("list_clusters", "The clusters of this console.", [], content, error)
        }
    }
    for endpoint in listed:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", endpoint.full_path)
        parameters = _path_parameters(endpoint.full_path)
        if endpoint.query is not None:
            parameters += _query_parameters(endpoint.query, components)
        content = {JSON: {"schema": of[endpoint.answer]}}
        operation = _operation(endpoint.operation_id, endpoint.summary, parameters, content, error)
        if endpoint.body is not None:
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": of[endpoint.body]}}}
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    for file in files:
        parameters = _path_parameters(file.full_path)
        for query in file.queries:
            parameters += _query_parameters(query, components)
        bytes_of: dict[str, Any] = {kind: {"schema": {}} for kind in file.media_types}
        summary = (file.handler.__doc__ or "").strip().splitlines()[0]
        operation = _operation(file.handler.__name__, summary, parameters, bytes_of, error)
        paths[file.full_path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tidelog console", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
        # One of them; {} is for a console without a login.
        "security": [{}, *({name: []} for name in SECURITY_SCHEMES)],
    }


def _operation(
    name: str, summary: str, parameters: list[dict[str, Any]], content: dict[str, Any], error: dict[str, Any]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": {"description": "The answer.", "content": content}, "default": error},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)(?::\w+)?}", path)
    ]


def _query_parameters(kind: type[Struct], components: dict[str, Any]) -> list[dict[str, Any]]:
    (_,), found = msgspec.json.schema_components([kind], ref_template=REF)
    properties = found.pop(kind.__name__)["properties"]
    components.update(found)
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.default is NODEFAULT and field.default_factory is NODEFAULT,
            "schema": properties[field.encode_name],
        }
        for field in msgspec.structs.fields(kind)
    ]
