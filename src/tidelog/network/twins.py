"""The hot functions of the network: compiled if the extension is built, in plain Python otherwise.

TIDELOG_PURE=1 in the environment chooses plain Python. Both give the same results.
"""

from __future__ import annotations

import os

try:
    if os.environ.get("TIDELOG_PURE") == "1":
        raise ImportError("TIDELOG_PURE=1 chooses plain Python")
    from tidelog.network._speed import RequestTimes, known_header

    COMPILED = True
except ImportError:
    from tidelog.network._pure import RequestTimes, known_header  # type: ignore[assignment]

    COMPILED = False

__all__ = ["COMPILED", "RequestTimes", "known_header"]
