"""Consumers that call handlers: a thread for each stream of a topic, retries, dead letters."""

from __future__ import annotations

from tidelog.clients.handlers.consumer import HandlerConsumer, Progress
from tidelog.clients.handlers.plan import (
    ErrorPolicy,
    HandlerFailed,
    MessageHandler,
    Reject,
    Stream,
)

__all__ = [
    "ErrorPolicy",
    "HandlerConsumer",
    "HandlerFailed",
    "MessageHandler",
    "Progress",
    "Reject",
    "Stream",
]
