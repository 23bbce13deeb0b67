"""Child processes: the command of this installation's tools, and children that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def tool_command() -> list[str]:
    """The command of this installation's `tidelog`."""
    script = Path(sys.executable).with_name("tidelog")
    return [str(script)] if script.exists() else [sys.executable, "-m", "tidelog"]


def end_with_parent() -> Callable[[], None] | None:
    """A function for the child to call at its start, so that it gets SIGTERM when this process is killed.

    None on systems without such a function.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before the line above
            os._exit(1)

    return ask
