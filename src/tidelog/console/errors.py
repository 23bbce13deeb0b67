"""Errors of the console: a status, a code for programs and a sentence for people."""

from __future__ import annotations

from msgspec import Struct

from tidelog import errors
from tidelog.errors import KafkaError

STATUS: dict[type[KafkaError], int] = {
    errors.UnknownTopicOrPartition: 404,
    errors.UnknownTopicId: 404,
    errors.GroupIdNotFound: 404,
    errors.TopicAlreadyExists: 409,
    errors.NonEmptyGroup: 409,
    errors.ReassignmentInProgress: 409,
    errors.TopicAuthorizationFailed: 403,
    errors.GroupAuthorizationFailed: 403,
    errors.ClusterAuthorizationFailed: 403,
    errors.TransactionalIdAuthorizationFailed: 403,
    errors.UnsupportedVersion: 501,
    errors.NetworkException: 502,
}


class ApiError(Exception):
    """A request that is refused or fails. `headers` go into the answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers: dict[str, str] = {}


class ErrorBody(Struct):
    """Why a request failed: a code for programs, a sentence for people."""

    code: str
    message: str


class ErrorAnswer(Struct):
    error: ErrorBody


def api_error(error: KafkaError) -> ApiError:
    """A KafkaError as the answer of a page or of the API."""
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return ApiError(status, type(error).__name__, str(error))
    is_timeout = type(error).__name__ in ("TimeoutException", "RequestTimedOut")
    return ApiError(504 if is_timeout else 400, type(error).__name__, str(error))


def check_confirmed(typed: str, name: str, what: str) -> None:
    """Raise ApiError 400 unless the typed text is the name of the thing to delete."""
    if typed != name:
        raise ApiError(400, "NOT_CONFIRMED", f"Type the {what} to confirm: {name}, not {typed!r}.")


def not_found(what: str) -> ApiError:
    return ApiError(404, "NOT_FOUND", f"{what} does not exist.")
