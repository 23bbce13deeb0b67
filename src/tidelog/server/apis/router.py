"""The router: decodes requests, calls their handlers, and encodes and sends the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator, Sequence
from typing import Final, cast

from tidelog.errors import ClusterAuthorizationFailed, ErrorCode, KafkaError
from tidelog.network.request import Part, Request
from tidelog.protocol.api import API
from tidelog.protocol.headers import read_response_header, response_header
from tidelog.protocol.message import (
    Message,
    Reader,
    decoder_for,
    encode_parts,
    sliced_decoder_for,
    sliced_encoder_for,
)
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis.api import Api
from tidelog.server.apis.error_codes import ErrorCodes
from tidelog.server.services import Services
from tidelog.slices import SliceRunner, Slices

log = logging.getLogger("tidelog.server.apis")

SMALL_BYTES: Final = 4096
"""A request up to this size is decoded in one go: it has a few thousand elements at most."""


class Router:
    """Dispatches requests by API key, and turns exceptions into answers or closed connections."""

    def __init__(self, services: Services, apis: dict[int, Api]) -> None:
        self._services = services
        self._quotas = services.quotas
        self._apis = apis
        self._tasks: set[asyncio.Task[None]] = set()
        # The decoders of the versions that clients have used so far; API key and version make one number.
        self._readers: dict[int, Reader[Message]] = {}
        self._error_codes = ErrorCodes()
        self._slices = SliceRunner()

    def versions(self, api_key: int) -> tuple[int, int] | None:
        """The served versions of an API; the network refuses other versions."""
        api = self._apis.get(api_key)
        return None if api is None else (api.min_version, api.max_version)

    def handle(self, request: Request) -> None:
        api = self._apis[request.api_key]
        if api.forwarded and not request.is_forwarded:
            cluster = self._services.cluster
            if cluster is not None and cluster.forwarding.is_needed:
                cluster.forwarding.forward(request, self._handle_here, self._forwarded, self.failed)
                return
        self._handle(api, request)

    def _handle_here(self, request: Request) -> None:
        self._handle(self._apis[request.api_key], request)

    def _forwarded(self, request: Request, answer: bytes) -> None:
        """Answer a request with the answer of the controller."""
        if self._quotas.is_active:
            answer = self._quotas.throttle_forwarded(request, answer)
        request.respond([answer])

    def _handle(self, api: Api, request: Request) -> None:
        try:
            if api.access is None and self._services.authorizer is not None:
                # Nobody has said what it needs: no client may find that out.
                raise ClusterAuthorizationFailed(f"the checks of API {api.key} are not declared")
            if api.raw:
                work = api.handle(self._services, request)
                if work is not None:
                    self._slices.start(self._ended(request, cast("Slices[None]", work)))
                return
            if request.size - request.body_start > SMALL_BYTES and api.serves(request.api_version):
                self._slices.start(self._ended(request, self._handle_large(api, request)))
                return
            if api.quick is not None and api.quick(self._services, request):
                return
            answer = api.handle(self._services, request, self._decode(api, request))
        except ProtocolError as error:
            self._malformed(request, error)
            return
        except Exception as error:
            self.failed(request, error)
            return
        if isinstance(answer, Message):
            self.respond(request, answer)
        elif isinstance(answer, Generator):
            self._slices.start(self._ended(request, self._make_answer(request, answer)))
        elif answer is not None:
            self._promise(request, answer)

    def _handle_large(self, api: Api, request: Request) -> Slices[None]:
        """Decode and answer a request that may have many elements, in slices."""
        reader = sliced_decoder_for(API[request.api_key].request, request.api_version)
        try:
            body, _ = yield from reader(request.keep(), request.body_start)
        except ProtocolError as error:
            self._malformed(request, error)
            return
        request.release_buffer()
        yield
        answer = api.handle(self._services, request, body)
        if isinstance(answer, Message):
            yield from self._respond_in_slices(request, answer)
        elif isinstance(answer, Generator):
            yield from self._make_answer(request, answer)
        elif answer is not None:
            self._promise(request, answer)

    def _make_answer(
        self, request: Request, making: Slices[Message | None] | Slices[Message] | Slices[None]
    ) -> Slices[None]:
        answer = yield from making
        if answer is not None:
            yield from self._respond_in_slices(request, answer)

    def _ended(self, request: Request, work: Slices[None]) -> Slices[None]:
        """Run the work on a request: an error becomes the answer, a closed connection ends the work."""
        if self._quotas.is_active:
            work = self._quotas.timed_slices(request, work)
        try:
            for _ in work:
                yield
                if not request.channel.is_open:
                    work.close()
                    if not request.done:
                        request.respond_nothing()
        except Exception as error:
            self.failed(request, error)
        finally:
            self._quotas.forget_time(request)

    def _malformed(self, request: Request, error: ProtocolError) -> None:
        request.close_connection(f"malformed {API[request.api_key].name} request: {error}")

    def _promise(
        self, request: Request, answer: Coroutine[None, None, Message | Slices[Message]]
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _decode(self, api: Api, request: Request) -> Message:
        reader = self._readers.get(request.api_key << 16 | request.api_version)
        if reader is None:
            info = API[request.api_key]
            if not api.serves(request.api_version):
                # An ApiVersions request of a newer version: the handler needs only its header.
                return info.request()
            reader = decoder_for(info.request, request.api_version)
            self._readers[request.api_key << 16 | request.api_version] = reader
        # As in Kafka, bytes after the body are ignored.
        return reader(request.buffer, request.body_start)[0]

    async def _finish(
        self, request: Request, answer: Coroutine[None, None, Message | Slices[Message]]
    ) -> None:
        try:
            work = self._quotas.timed_coroutine(request, answer) if self._quotas.is_active else answer
            self.respond(request, await work)
        except Exception as error:
            self.failed(request, error)
        finally:
            self._quotas.forget_time(request)

    def respond(self, request: Request, answer: Message | Slices[Message] | Slices[None]) -> None:
        """Encode the answer in the version of the request and send it.

        A generator makes the answer in slices. If it returns None, it has sent the answer itself.
        """
        if isinstance(answer, Generator):
            self._slices.start(self._ended(request, self._make_answer(request, answer)))
        elif request.size > SMALL_BYTES and not self._apis[request.api_key].raw:
            # The answer may have as many elements as the request. Raw handlers count elements themselves.
            self._slices.start(self._ended(request, self._respond_in_slices(request, answer)))
        else:
            try:
                self._respond_now(request, answer)
            except ProtocolError as error:
                # The caller may have answers for others, who must not miss theirs.
                self.failed(request, error)

    def _respond_now(self, request: Request, answer: Message) -> None:
        version = request.api_version
        if not self._apis[request.api_key].serves(version):
            version = 0
        if self._quotas.is_active:
            self._throttle(request, answer)
        for code in self._error_codes.of(answer):
            request.count_error(code)
        header = response_header(request.api_key, version, request.correlation_id)
        # Parts are bytes or file slices: messages hold no other kind.
        request.respond(cast("list[Part]", encode_parts(answer, version, header)))

    def _respond_in_slices(self, request: Request, answer: Message) -> Slices[None]:
        version = request.api_version
        for code in self._error_codes.every(answer):
            if code:
                request.count_error(code)
            yield
        if self._quotas.is_active:
            self._throttle(request, answer)
        header = response_header(request.api_key, version, request.correlation_id)
        parts = yield from sliced_encoder_for(type(answer), version)(answer, header)
        request.respond(cast("list[Part]", parts))

    def _throttle(self, request: Request, answer: Message) -> None:
        """Throttle the client of a request over a quota. Raw handlers and fast paths do so themselves."""
        api = self._apis[request.api_key]
        if not api.raw and not request.deferred:
            exempt = api.from_brokers or request.channel.is_exempt
            self._quotas.throttle_answer(request, answer, exempt=exempt)

    def failed(self, request: Request, error: Exception) -> None:
        """Answer with the error code if the response has a field for it, else close the connection."""
        info = API[request.api_key]
        if not isinstance(error, KafkaError):
            log.error(
                "handling %s v%d of %s failed",
                info.name,
                request.api_version,
                request.channel.peer,
                exc_info=error,
            )
        if request.done:
            return  # the handler had answered before it failed
        answer = info.response()
        if not hasattr(answer, "error_code"):
            request.close_connection(f"{info.name} failed: {error}")
            return
        answer.error_code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self._respond_now(request, answer)

    def describe(self, request: Request, parts: Sequence[Part] | None) -> str:
        """The body of a request, or of its answer if there are parts, without secrets, for the trace log."""
        from tidelog.protocol.json import Redaction, to_json

        version = request.api_version
        if not self._apis[request.api_key].serves(version):
            return "{}"
        try:
            body = self._body(request) if parts is None else self._answer_body(request, parts)
        except ProtocolError:
            # The reason could quote a secret. The handling of the request logs it.
            return "malformed"
        return "none" if body is None else str(to_json(body, version, Redaction(_is_secret)))

    def _body(self, request: Request) -> Message:
        reader = decoder_for(API[request.api_key].request, request.api_version)
        return reader(request.buffer, request.body_start)[0]

    def _answer_body(self, request: Request, parts: Sequence[Part]) -> Message | None:
        """Decode an answer, with its length in front; None if it has file slices or is incomplete."""
        if not all(isinstance(part, bytes | bytearray | memoryview) for part in parts):
            return None
        frame = b"".join(cast("Sequence[bytes]", parts))
        if int.from_bytes(frame[:4], "big") != len(frame) - 4 or len(frame) < 8:
            return None
        key, version = request.api_key, request.api_version
        _, start = read_response_header(key, version, frame, 4)
        return decoder_for(API[key].response, version)(frame, start)[0]

    async def drain(self, seconds: float | None = None) -> None:
        """Wait for the answers that handlers are still making, at most so many seconds; then cancel them."""
        await self._slices.drain()
        while self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            await self._slices.drain()


def _is_secret(setting: str) -> bool:
    """Whether the value of a setting is secret; an unknown setting may be a password."""
    from tidelog.server.config.broker_definition import key_of
    from tidelog.server.config.topic import topic_definition

    key = key_of(setting) or topic_definition().get(setting)
    return key is None or key.sensitive
