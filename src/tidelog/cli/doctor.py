"""`tidelog doctor`: checks the requirements of a broker and the pipelines, and how to meet them."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tidelog.cli.output import output_option, print_json, tool_command

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
FEW_FILES = 10_000
LITTLE_SPACE = 1 << 30
# File systems that lose their files at a restart, or that may lose data after fsync.
VOLATILE = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")
RELEASED = 1_700_000_000  # a clock before this day of 2023 is wrong
CLOCK_UNSYNCHRONIZED = 5  # the answer of adjtimex if no NTP client runs

OK, WARNING, FAILURE = "ok", "warning", "failure"
MARKS = {OK: "ok  ", WARNING: "warn", FAILURE: "FAIL"}


@dataclass(slots=True, frozen=True)
class Finding:
    """The result of one check. `advice` says what to do about a warning or a failure."""

    what: str
    status: str
    text: str
    advice: str = ""


@tool_command("doctor")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="The port to try."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidelog-data"),
    show_default=True,
    help="The log folder of the broker; it need not exist yet.",
)
@output_option
@click.pass_context
def doctor(ctx: click.Context, port: int, data: Path, output: str) -> None:
    """Check the requirements of a broker and the pipelines. The exit code is 1 if a broker cannot run."""
    findings = list(examine(port, data))
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.status]}  {finding.what}: {finding.text}")
            if finding.advice:
                click.echo(f"      {finding.advice}")
    ctx.exit(int(any(finding.status == FAILURE for finding in findings)))


def examine(port: int, data: Path) -> Iterator[Finding]:
    yield python()
    yield compiled_module()
    yield java()
    yield port_is_free(port)
    yield from log_folder(data)
    yield open_files()
    yield clock()


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", FAILURE, version, "Install Python 3.11 or later.")
    return Finding("Python", OK, version)


def compiled_module() -> Finding:
    from tidelog.network.twins import COMPILED as NETWORK_COMPILED
    from tidelog.records.loops import COMPILED

    what = "compiled module"
    if COMPILED and NETWORK_COMPILED:
        return Finding(what, OK, "in use")
    if os.environ.get("TIDELOG_PURE") == "1":
        return Finding(what, WARNING, "switched off", "Unset TIDELOG_PURE to use it.")
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        return Finding(what, WARNING, "not built", "Install a C compiler, then install tidelog again.")
    return Finding(what, WARNING, "not built", f"{compiler} is here: install tidelog again to build it.")


def java(run: Callable[[str], str] | None = None) -> Finding:
    """Check Java, which Spark and ZooKeeper need; a broker does not."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else None
    program = program or shutil.which("java")
    advice = (
        f"Install Java {OLDEST_JAVA} or later to run pipelines on Spark, or ZooKeeper; a broker needs none."
    )
    if program is None:
        return Finding("Java", WARNING, "not found", advice)
    text = (run or _version_of)(program)
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        return Finding("Java", WARNING, f"{program} does not print its version", advice)
    status = OK if int(found[1]) >= OLDEST_JAVA else WARNING
    return Finding("Java", status, f"{found[1]} ({program})", "" if status == OK else advice)


def _version_of(program: str) -> str:
    try:
        ran = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stderr + ran.stdout


def port_is_free(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = "Stop the program on that port, or use another port: tidelog start --port N."
            return Finding("port", FAILURE, f"{port} cannot be used: {error.strerror}", advice)
    return Finding("port", OK, f"{port} is free" if port else "the system chooses one")


def log_folder(data: Path) -> Iterator[Finding]:
    nearest = data.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        yield Finding("log folder", FAILURE, f"{nearest} is not a folder", "Choose another with log.dirs.")
        return
    if not os.access(nearest, os.W_OK | os.X_OK):
        advice = "Let the user of the broker write there, or choose another folder with log.dirs."
        yield Finding("log folder", FAILURE, f"{nearest} cannot be written to", advice)
        return
    yield Finding(
        "log folder", OK, f"{data} can be written to" if nearest == data.absolute() else f"{data} can be made"
    )
    free = shutil.disk_usage(nearest).free
    little = free < LITTLE_SPACE
    advice = "Make room: a broker whose disk is full refuses records." if little else ""
    yield Finding("disk space", WARNING if little else OK, f"{free / (1 << 30):,.1f} GiB are free", advice)
    yield file_system(nearest)


def file_system(folder: Path, mounts: str | None = None) -> Finding:
    """Check the file system of a folder, by /proc/mounts."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return Finding("file system", OK, "not known on this system")
    best, kind = "", "unknown"
    resolved = str(folder.resolve())
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    if kind in VOLATILE:
        return Finding(
            "file system", WARNING, f"{kind} at {best}", "Its files are gone after a restart of the machine."
        )
    if kind in REMOTE:
        advice = "A network file system may lose data after fsync: use a local disk."
        return Finding("file system", WARNING, f"{kind} at {best}", advice)
    return Finding("file system", OK, f"{kind} at {best}")


def open_files() -> Finding:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY or most >= FEW_FILES:
        shown = "without a limit" if most == resource.RLIM_INFINITY else f"up to {most:,}"
        return Finding("open files", OK, shown)
    advice = "Raise the hard limit of open files (ulimit -Hn): each connection and each segment takes one."
    return Finding("open files", WARNING, f"up to {most:,}", advice)


def clock(now: float | None = None) -> Finding:
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < RELEASED:
        return Finding("clock", FAILURE, shown, "Set the clock: retention depends on it.")
    if _clock_state() == CLOCK_UNSYNCHRONIZED:
        advice = "Run an NTP client, so that the timestamps of several machines agree."
        return Finding("clock", WARNING, shown, advice)
    return Finding("clock", OK, shown)


def _clock_state() -> int | None:
    """The kernel's state of the clock; None if the system has no adjtimex."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(512)))  # modes 0: nothing is changed
    return None if state < 0 else state
