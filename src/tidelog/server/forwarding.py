"""ForwardingManager: forwards requests of clients to the controller, if only the controller answers them.

The request is sent in an Envelope with the client's principal and address, and the client gets the
controller's answer unchanged. Kafka 3.9 announces Envelope, but closes the connection that uses it. If Kafka
3.9 is the controller, clients get NOT_CONTROLLER and send the request to the controller themselves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable

from tidelog.errors import (
    ErrorCode,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    UnknownServerError,
    UnsupportedVersion,
    error_class,
)
from tidelog.network.request import Handler, Request
from tidelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.protocol.messages.principal import DefaultPrincipalData
from tidelog.server.controller_channel import ControllerChannel

_log = logging.getLogger("tidelog.server.forwarding")

Respond = Callable[[Request, bytes], None]
"""Answers a request with the answer of the controller (Router._forwarded)."""

Failed = Callable[[Request, Exception], None]
"""Answers a request with an error, or closes its connection (Router.failed)."""

PRINCIPAL_VERSION = 0


class ForwardingManager:
    """`is_active`: this broker is the controller. `is_possible`: the controller is one of our brokers."""

    def __init__(
        self, channel: ControllerChannel, is_active: Callable[[], bool], is_possible: Callable[[], bool]
    ) -> None:
        self._channel = channel
        self._is_active = is_active
        self._is_possible = is_possible
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_needed(self) -> bool:
        """Whether another of our brokers is the controller."""
        return not self._is_active() and self._is_possible()

    def forward(self, request: Request, handle_here: Handler, respond: Respond, failed: Failed) -> None:
        """Answer a request with the controller's answer.

        If no controller accepts it, `handle_here` answers with NOT_CONTROLLER in the form of the request.
        `failed` answers other errors.
        """
        envelope = EnvelopeRequest(
            request_data=bytes(request.keep()),
            request_principal=serialized_principal(request.principal, request.is_token_authenticated),
            client_host_address=_address(request.channel.peer),
        )
        request.waiting()  # does not count as in progress: the controller may wait for this broker in turn
        work = self._forward(request, envelope, handle_here, respond, failed)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        request: Request,
        envelope: EnvelopeRequest,
        handle_here: Handler,
        respond: Respond,
        failed: Failed,
    ) -> None:
        try:
            answer = await self._channel.call(envelope, EnvelopeResponse)
        except (UnsupportedVersion, RequestTimedOut, NetworkException) as error:
            _log.info("a request is not forwarded: %s", error)
            handle_here(request)
        except Exception as error:
            failed(request, error)
        else:
            if answer.error_code or answer.response_data is None:
                failed(request, _envelope_error(answer.error_code))
            else:
                respond(request, bytes(answer.response_data))

    async def drain(self) -> None:
        """Wait for the answers to forwarded requests."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))


def _envelope_error(code: int) -> KafkaError:
    """An error of the Envelope is between brokers: Kafka's clients get no more than an unknown error."""
    reason = error_class(code).__name__ if code else "no answer in it"
    _log.error("the controller refused an Envelope: %s", reason)
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return UnsupportedVersion("the controller does not serve this version of the request")
    return UnknownServerError(f"the controller refused the Envelope: {reason}")


def serialized_principal(principal: str, is_token_authenticated: bool = False) -> bytes:
    """A principal such as "User:ANONYMOUS", as Kafka's DefaultKafkaPrincipalBuilder serializes it."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=is_token_authenticated)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + data.encode(PRINCIPAL_VERSION)


def _address(peer: str) -> bytes:
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    return ipaddress.ip_address(host).packed
