"""The tracebacks of handlers' errors: the frames of the handler, without the frames that call it."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from types import TracebackType

CALLERS = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))


def without_callers(error: BaseException) -> BaseException:
    """The error with the frames of its handler; all frames where it comes from no handler."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(CALLERS):
        frames = frames.tb_next
    return error if frames is None else error.with_traceback(frames)


def place_of(error: BaseException) -> str:
    """The file and line of an error, such as ` (handlers.py, line 12)`, or an empty text."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def traceback_text(error: BaseException, longest: int) -> str:
    """The traceback as Python prints it; the middle of a long one is left out."""
    text = "".join(traceback.format_exception(error)).rstrip()
    if len(text) <= longest:
        return text
    cut = "\n  ...\n"
    head = (longest - len(cut)) // 4
    return text[:head] + cut + text[head + len(cut) - longest :]
