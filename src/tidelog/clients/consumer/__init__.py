"""The consumer: `Consumer` blocks, `AsyncConsumer` awaits; both do the same."""

from __future__ import annotations
