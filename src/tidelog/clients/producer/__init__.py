"""The producer: `Producer` blocks, `AsyncProducer` awaits; both do the same."""

from __future__ import annotations
