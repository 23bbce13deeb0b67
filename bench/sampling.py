"""A profile of a Python broker under load: py-spy's samples, summed up by function."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES = 25
LONGEST = 60  # seconds


def find_sampler() -> str | None:
    beside_python = Path(sys.executable).parent / "py-spy"
    return str(beside_python) if beside_python.exists() else shutil.which("py-spy")


@contextmanager
def sampled(pid: int, stacks: Path) -> Iterator[None]:
    """Sample the process within the block. The file has stacks for programs that draw flame graphs."""
    sampler = find_sampler()
    if sampler is None:
        raise OSError("py-spy was not found; install it with pip install py-spy")
    stacks.parent.mkdir(parents=True, exist_ok=True)
    stacks.unlink(missing_ok=True)
    words = [sampler, "record", "--pid", str(pid), "--format", "raw", "--output", str(stacks), "--threads"]
    words += ["--rate", "250", "--duration", str(LONGEST), "--nonblocking"]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST)


def summary(stacks: Path) -> str:
    """The functions with the most time of their own, and the time in and below each."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for line in stacks.read_text().splitlines() if stacks.exists() else []:
        frames, _, count = line.rpartition(" ")
        names = frames.split(";")
        own[names[-1]] += int(count)
        for name in set(names):
            below[name] += int(count)
    total = sum(own.values())
    if not total:
        return "no samples"
    rows = [f"{'own':>6} {'all':>6}  function"]
    for name, times in own.most_common(LINES):
        rows.append(f"{times / total:6.1%} {below[name] / total:6.1%}  {name}")
    return "\n".join(rows)
