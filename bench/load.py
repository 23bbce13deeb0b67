"""The load generators: compiled if their source is newer, run as processes, with results as JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker import Broker

HERE = Path(__file__).parent
BUILD = HERE / "build"
LIMIT = 600.0  # seconds; each generator has its own, shorter limit


class LoadFailed(Exception):
    """A load generator could not be built, or ended with an error."""


@dataclass(slots=True, frozen=True)
class Load:
    """The result of one run of a generator."""

    requests: int
    bytes: int
    seconds: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    late_p99_us: float = 0.0
    """How late a request of the latency mode left: what the generator, not the broker, waited for a core."""
    answer_p99_us: float = 0.0
    """From there to its answer."""


def build(name: str, *libraries: str) -> Path:
    """The program compiled from NAME.c."""
    source, program = HERE / f"{name}.c", BUILD / name
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadFailed("no C compiler found; install one (for example the package gcc) or set CC")
    BUILD.mkdir(exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(program), str(source), *libraries], check=True)
    return program


def _arguments(broker: Broker, mode: str, options: dict[str, object]) -> list[str]:
    words = [str(build("loadgen")), "--host", broker.host, "--port", str(broker.port)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return [*words, mode]


def _finish(process: subprocess.Popen[str], mode: str) -> Load:
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise LoadFailed(f"{mode} was not done after {LIMIT:.0f} s") from None
    if process.returncode:
        raise LoadFailed(err.strip() or f"{mode} ended with status {process.returncode}")
    return Load(**json.loads(out))


def start(broker: Broker, mode: str, **options: object) -> subprocess.Popen[str]:
    """Start a generator beside others; `finish` waits for it."""
    words = _arguments(broker, mode, options)
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> Load:
    return _finish(process, "load")


def run(broker: Broker, mode: str, **options: object) -> Load:
    return _finish(start(broker, mode, **options), mode)


@contextmanager
def idle_connections(broker: Broker, count: int) -> Iterator[None]:
    """Hold `count` connections open, each after one answer."""
    process = start(broker, "idle", connections=count)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            assert process.stderr is not None
            raise LoadFailed(process.stderr.read().strip())
        yield
    finally:
        process.communicate(timeout=LIMIT)


def librdkafka() -> str | None:
    """The librdkafka of the confluent-kafka package, or the system's."""
    package = importlib.util.find_spec("confluent_kafka")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent.parent / "confluent_kafka.libs"
        for found in sorted(bundled.glob("librdkafka*.so*")):
            return str(found)
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        for found in sorted(Path(folder).glob("librdkafka.so*")):
            return str(found)
    return None


def run_librdkafka(
    library: str,
    broker: Broker,
    topic: str,
    records: int,
    record_size: int,
    *settings: str,
    partitions: int = 1,
) -> float:
    """Records per second of one producer with librdkafka's batching, until the last acknowledgement.

    `settings` are NAME=VALUE; the default is acks=1.
    """
    words = [str(build("rdkafka_load", "-ldl")), library, f"{broker.host}:{broker.port}", topic]
    words.append(str(partitions))
    words += [str(records), str(record_size), *(settings or ("acks=1",))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise LoadFailed(done.stderr.strip())
    return records / float(json.loads(done.stdout)["seconds"])
