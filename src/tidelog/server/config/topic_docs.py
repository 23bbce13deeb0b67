"""What each topic setting does, in our words; loaded only for documentation."""

from __future__ import annotations

TOPIC_DOCS: dict[str, str] = {}
