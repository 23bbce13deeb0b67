"""What each broker setting does, in our words; loaded only for documentation."""

from __future__ import annotations

BROKER_DOCS: dict[str, str] = {}
