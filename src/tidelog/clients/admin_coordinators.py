"""Questions that go to coordinators: each key's is looked up, and asked again while it loads or moves.

What is wrong with one key is told for that key and leaves the others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.clients.admin import Admin, Node, error_from
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
    UnknownServerError,
)
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

T = TypeVar("T")
Ask = Callable[[Node, list[str]], Mapping[str, T | KafkaError]]

GROUP_KEY = 0
TRANSACTION_KEY = 1
FIRST_BATCHED_VERSION = 4  # of the lookup: several keys at once
PAUSE_SECONDS = 0.1

# The coordinator is on its way; it is worth asking again.
PASSING: tuple[type[KafkaError], ...] = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NetworkException,
)


class Coordinators:
    """The coordinators of groups or of transactional ids; a question ends within about `timeout` seconds."""

    def __init__(self, admin: Admin, key_type: int, *, timeout: float = 30.0) -> None:
        self._admin = admin
        self._key_type = key_type
        self._timeout = timeout
        self._found: dict[str, Node] = {}

    def settle(
        self, keys: Iterable[str], ask: Ask[T], *, again: tuple[type[KafkaError], ...] = PASSING
    ) -> dict[str, T | KafkaError]:
        """What the coordinators answer for each key, asked again after errors that pass."""
        deadline = time.monotonic() + self._timeout
        settled: dict[str, T | KafkaError] = {}
        waiting = list(dict.fromkeys(keys))
        while waiting:
            settled.update(self._ask_once(waiting, ask))
            waiting = [key for key in waiting if isinstance(settled[key], again)]
            if waiting and time.monotonic() + PAUSE_SECONDS > deadline:
                for key in waiting:
                    settled[key] = RequestTimedOut(
                        f"{key!r}: not within {self._timeout:g} s; the last answer was {settled[key]}"
                    )
                break
            if waiting:
                for key in waiting:
                    self._found.pop(key, None)
                time.sleep(PAUSE_SECONDS)
        return settled

    def settle_one(self, key: str, ask: Ask[T], *, again: tuple[type[KafkaError], ...] = PASSING) -> T:
        """The answer for one key; its error raises."""
        value = self.settle([key], ask, again=again)[key]
        if isinstance(value, KafkaError):
            raise value
        return value

    def _ask_once(self, keys: list[str], ask: Ask[T]) -> dict[str, T | KafkaError]:
        answers: dict[str, T | KafkaError] = {}
        by_node: dict[Node, list[str]] = {}
        for key, coordinator in self._look_up(keys).items():
            if isinstance(coordinator, Node):
                by_node.setdefault(coordinator, []).append(key)
            else:
                answers[key] = coordinator
        for node, asked in by_node.items():
            try:
                answered = ask(node, asked)
            except KafkaError as error:
                answered = dict.fromkeys(asked, error)
            silent = UnknownServerError(f"the coordinator {node.host}:{node.port} gave no answer for it")
            answers.update((key, answered.get(key, silent)) for key in asked)
        return answers

    def _look_up(self, keys: list[str]) -> dict[str, Node | KafkaError]:
        unknown = [key for key in keys if key not in self._found]
        found = self._find(unknown) if unknown else {}
        self._found.update((key, node) for key, node in found.items() if isinstance(node, Node))
        silent = UnknownServerError("the broker gave no answer for it")
        return {key: self._found.get(key) or found.get(key, silent) for key in keys}

    def _find(self, keys: list[str]) -> dict[str, Node | KafkaError]:
        """Who coordinates each key, or why that cannot be said at present."""
        broker = self._admin.any_broker
        found: dict[str, Node | KafkaError] = {}
        if broker.version_for(FindCoordinatorRequest) >= FIRST_BATCHED_VERSION:
            request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=keys)
            for result in broker.call(request, FindCoordinatorResponse).coordinators:
                found[result.key] = error_from(result.error_code, result.error_message) or Node(
                    result.node_id, result.host, result.port
                )
            return found
        for key in keys:
            single = FindCoordinatorRequest(key=key, key_type=self._key_type)
            answer = broker.call(single, FindCoordinatorResponse)
            found[key] = error_from(answer.error_code, answer.error_message) or Node(
                answer.node_id, answer.host, answer.port
            )
        return found
