"""From a request to its handler, and from the handler's answer to the bytes on the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from tidelog.errors import ErrorCode, KafkaError
from tidelog.network.request import Part, Request
from tidelog.protocol.api import API
from tidelog.protocol.headers import read_response_header, response_header
from tidelog.protocol.message import Message, Reader, decoder_for, encode_parts
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis.api import Api
from tidelog.server.apis.error_codes import ErrorCodes
from tidelog.server.services import Services

log = logging.getLogger("tidelog.server.apis")


class Router:
    """Dispatches by API key; the one place where an exception becomes an answer or a closed connection."""

    def __init__(self, services: Services, apis: dict[int, Api]) -> None:
        self._services = services
        self._apis = apis
        self._tasks: set[asyncio.Task[None]] = set()
        # The readers of the versions that clients have used so far, by key and version in one number.
        self._readers: dict[int, Reader[Message]] = {}
        self._error_codes = ErrorCodes()

    def versions(self, api_key: int) -> tuple[int, int] | None:
        """The versions that are served of an API, for the network to refuse the others."""
        api = self._apis.get(api_key)
        return None if api is None else (api.min_version, api.max_version)

    def handle(self, request: Request) -> None:
        api = self._apis[request.api_key]
        try:
            if api.raw:
                api.handle(self._services, request)
                return
            answer = api.handle(self._services, request, self._decode(api, request))
        except ProtocolError as error:
            request.close_connection(f"malformed {API[request.api_key].name} request: {error}")
            return
        except Exception as error:
            self.failed(request, error)
            return
        if answer is None:
            return
        if isinstance(answer, Message):
            self.respond(request, answer)
        else:
            task = asyncio.get_running_loop().create_task(self._finish(request, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _decode(self, api: Api, request: Request) -> Message:
        reader = self._readers.get(request.api_key << 16 | request.api_version)
        if reader is None:
            info = API[request.api_key]
            if not api.serves(request.api_version):
                # An ApiVersions that is too new: its handler answers from the header alone.
                return info.request()
            reader = decoder_for(info.request, request.api_version)
            self._readers[request.api_key << 16 | request.api_version] = reader
        # Bytes behind the body are passed over, as Kafka does.
        return reader(request.buffer, request.body_start)[0]

    async def _finish(self, request: Request, answer: object) -> None:
        try:
            self.respond(request, await answer)  # type: ignore[misc]
        except Exception as error:
            self.failed(request, error)

    def respond(self, request: Request, answer: Message) -> None:
        """Encode the answer in the version that was asked for and send it."""
        version = request.api_version
        if not self._apis[request.api_key].serves(version):
            version = 0
        for code in self._error_codes.of(answer):
            request.count_error(code)
        header = response_header(request.api_key, version, request.correlation_id)
        # The parts that are not bytes are file slices: our messages hold no other kind.
        request.respond(cast("list[Part]", encode_parts(answer, version, header)))

    def failed(self, request: Request, error: Exception) -> None:
        """Answer with the error where the API has a place for it, else close the connection."""
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
            return  # answered before it failed
        answer = info.response()
        if not hasattr(answer, "error_code"):
            request.close_connection(f"{info.name} failed: {error}")
            return
        answer.error_code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.respond(request, answer)

    def describe(self, request: Request, parts: Sequence[Part] | None) -> str:
        """The body of a request, or of its answer where parts are given, for the trace log; no secrets."""
        from tidelog.protocol.json import Redaction, to_json

        version = request.api_version
        if not self._apis[request.api_key].serves(version):
            return "{}"
        try:
            body = self._body(request) if parts is None else self._answer_body(request, parts)
        except ProtocolError:
            # The reason is told where the request is refused; here it could quote a secret.
            return "malformed"
        return "none" if body is None else str(to_json(body, version, Redaction(_is_secret)))

    def _body(self, request: Request) -> Message:
        reader = decoder_for(API[request.api_key].request, request.api_version)
        return reader(request.buffer, request.body_start)[0]

    def _answer_body(self, request: Request, parts: Sequence[Part]) -> Message | None:
        """The answer that parts, the length before them, make; None where they are not the whole of one."""
        if not all(isinstance(part, bytes | bytearray | memoryview) for part in parts):
            return None
        frame = b"".join(cast("Sequence[bytes]", parts))
        if int.from_bytes(frame[:4], "big") != len(frame) - 4 or len(frame) < 8:
            return None
        key, version = request.api_key, request.api_version
        _, start = read_response_header(key, version, frame, 4)
        return decoder_for(API[key].response, version)(frame, start)[0]

    async def drain(self) -> None:
        """Wait for the answers that are still being made."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))


def _is_secret(setting: str) -> bool:
    """Whether the value of a setting is hidden; what nobody knows may well be a password."""
    from tidelog.server.config.broker import key_of
    from tidelog.server.config.topic import topic_definition

    key = key_of(setting) or topic_definition().get(setting)
    return key is None or key.sensitive
