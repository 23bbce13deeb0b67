"""Envelope (58) v0: a broker forwards the request of a client to the active controller.

- Served in a cluster alone, over the listeners of the brokers; over others the connection is closed.
- The request in it is handled as if the client had sent it, with the principal and the address of the client,
  over the listener of the Envelope. Its answer comes back in the answer to the Envelope.
- It needs CLUSTER_ACTION (CLUSTER_AUTHORIZATION_FAILED); the request in it needs what the client needs.
- A broker that is not the controller, or no longer at the end, says NOT_CONTROLLER: the caller tries again.
- A request that is malformed or that is not for the controller is INVALID_REQUEST, a version that is not
  served UNSUPPORTED_VERSION, and a principal that cannot be read PRINCIPAL_DESERIALIZATION_FAILURE.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import cast

from tidelog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    NotController,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from tidelog.network.frames import SIZE
from tidelog.network.request import Part, Request
from tidelog.network.request_channel import InvalidRequest as InvalidHeader
from tidelog.network.request_channel import RequestChannel
from tidelog.protocol.message import decoder_for
from tidelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.protocol.messages.principal import DefaultPrincipalData
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import CLUSTER_ACTION, check_cluster
from tidelog.server.services import Services

log = logging.getLogger("tidelog.server.apis.envelope")

PRINCIPAL_VERSION = 0


def envelope(services: Services, request: Request, body: EnvelopeRequest) -> EnvelopeResponse | None:
    cluster = services.cluster
    if cluster is None or request.listener not in cluster.listeners:
        request.close_connection("an Envelope is for brokers")
        return None
    try:
        check_cluster(services, request, CLUSTER_ACTION)
        if not cluster.controller.is_active:
            raise NotController(f"broker {services.broker_id} is not the controller")
        forwarded = _forwarded(services, request, body)
    except KafkaError as error:
        return EnvelopeResponse(error_code=error.code)
    services.handle(forwarded)
    return None


def _forwarded(services: Services, request: Request, body: EnvelopeRequest) -> Request:
    """The request of the client. Its answer becomes the answer to the Envelope."""
    frame = memoryview(body.request_data)
    if len(frame) < 4:
        raise InvalidRequest(f"there is no request header in {len(frame)} bytes")
    api = services.apis.get(int.from_bytes(frame[:2], "big", signed=True))
    version = int.from_bytes(frame[2:4], "big", signed=True)
    if api is None or not api.forwarded:
        raise InvalidRequest("the request in the Envelope is not for the controller")
    if not api.serves(version):
        raise UnsupportedVersion(f"version {version} of API {api.key} is not served")
    source = ForwardedSource(
        services, request, _principal(body.request_principal), _address(body.client_host_address)
    )
    try:
        entry, correlation_id, client_id, body_start = source.context.read_header(frame)
    except InvalidHeader as error:
        raise InvalidRequest(str(error)) from error
    now = perf_counter_ns()
    return Request(
        source, entry, correlation_id, client_id, frame, body_start, len(frame), request.received_ns, now
    )


def read_principal(data: bytes | None) -> str:
    """A principal such as "User:ANONYMOUS", as Kafka's DefaultKafkaPrincipalBuilder serializes it."""
    found = _principal(data)
    return f"{found.type}:{found.name}"


def _principal(data: bytes | None) -> DefaultPrincipalData:
    if data is None or int.from_bytes(data[:2], "big") != PRINCIPAL_VERSION:
        raise PrincipalDeserializationFailure("the principal is missing or has an unknown version")
    try:
        found, _ = decoder_for(DefaultPrincipalData, PRINCIPAL_VERSION)(data, 2)
    except ProtocolError as error:
        raise PrincipalDeserializationFailure(f"the principal cannot be read: {error}") from error
    return found


def _address(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(bytes(data)))
    except ValueError as error:
        raise InvalidRequest(f"an address of {len(data)} bytes is none") from error


class ForwardedSource:
    """The source of a forwarded request: a client of the broker that sent the Envelope."""

    is_forwarded = True
    is_exempt = False

    def __init__(
        self, services: Services, outer: Request, principal: DefaultPrincipalData, address: str
    ) -> None:
        self._services = services
        self._outer = outer
        self.context: RequestChannel = outer.channel.context
        self.listener = outer.listener
        self.connection_id = outer.channel.connection_id
        self.client_software = ("unknown", "unknown")
        self.principal = f"{principal.type}:{principal.name}"
        self.is_token_authenticated = principal.token_authenticated
        self.allowed_reads: dict[str | bytes, int] = {}
        self.allowed_writes: dict[str, int] = {}
        self.peer = f"{address}:0"  # the client's port is not known

    @property
    def is_open(self) -> bool:
        return self._outer.channel.is_open

    def keep_frame(self, request: Request) -> None:
        """The frame is part of the Envelope's body, which the request keeps."""

    def throttle(self, seconds: float, ended: Callable[[], None]) -> None:
        """The broker with the connection of the client mutes it."""
        ended()

    def send_frame(self, request: Request, frame: bytes) -> None:
        self._answer(request, frame[SIZE.size :])

    def send_parts(self, request: Request, parts: Sequence[Part]) -> None:
        # No answer of the controller has file slices.
        self._answer(request, b"".join(cast("Sequence[bytes]", parts)))

    def send_nothing(self, request: Request) -> None:
        self._complete(request, EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST))

    def refuse(self, request: Request, reason: str) -> None:
        log.warning("the request of %s in an Envelope is refused: %s", self.peer, reason)
        self._complete(request, EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST))

    def _answer(self, request: Request, data: bytes) -> None:
        if ErrorCode.NOT_CONTROLLER in (request.errors or {}):
            self._complete(request, EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))
        else:
            self._complete(request, EnvelopeResponse(response_data=data))

    def _complete(self, request: Request, answer: EnvelopeResponse) -> None:
        request.done = True
        self.context.record(request, (), perf_counter_ns())
        if not self._outer.done:
            self._services.respond(self._outer, answer)


APIS = (Api(58, 0, 0, envelope, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),)
