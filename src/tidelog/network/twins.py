"""What is done with every small request: compiled where the extension was built, plain Python elsewhere.

TIDELOG_PURE=1 in the environment asks for plain Python; the answers are the same.
"""

from __future__ import annotations

import os

try:
    if os.environ.get("TIDELOG_PURE") == "1":
        raise ImportError("plain Python was asked for")
    from tidelog.network._speed import RequestTimes, known_header

    COMPILED = True
except ImportError:
    from tidelog.network._pure import RequestTimes, known_header  # type: ignore[assignment]

    COMPILED = False

__all__ = ["COMPILED", "RequestTimes", "known_header"]
