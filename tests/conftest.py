"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says something of the machine, nothing of the code.
settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")
