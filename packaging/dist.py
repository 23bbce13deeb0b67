"""Build the source archive and the wheels into dist/, and try each in an empty environment.

    python packaging/dist.py
    python packaging/dist.py --smoke    try what is installed, with its compiled module

A wheel with the compiled module is for this machine's kind; the one without it is for all. The smoke test of
each starts a broker, writes records and reads them back, with nothing but what the archive brings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROJECT = Path(__file__).parent.parent
DIST = PROJECT / "dist"

SMOKE = """\
import sys
from tidelog.network.twins import COMPILED as network
from tidelog.records.loops import COMPILED as records
from tidelog.testing import Broker
from tidelog import Consumer, Producer

assert (network, records) == (COMPILED, COMPILED), (network, records)
with Broker() as broker:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(100):
            producer.send("smoke", str(number).encode())
    settings = {"bootstrap_servers": broker.bootstrap_servers, "auto_offset_reset": "earliest"}
    with Consumer("smoke", **settings) as consumer:
        seen = []
        while len(seen) < 100:
            seen += [int(record.value) for record in consumer.poll(10)]
assert seen == list(range(100)), seen
"""


def run(*command: str | Path, cwd: Path = PROJECT, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> list[tuple[Path, bool]]:
    """The archives, and whether each has, or builds, the compiled module."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    [source] = DIST.glob("*.tar.gz")
    wheels = []
    for compiled in (True, False):
        before = set(DIST.glob("*.whl"))
        skip = {} if compiled else {"TIDELOG_WITHOUT_COMPILED": "1"}
        # From the source archive, so that a file that it lacks is missed here.
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", DIST, source, **skip)
        [wheel] = set(DIST.glob("*.whl")) - before
        wheels.append((wheel, compiled))
    return [*wheels, (source, True)]


def try_out(archive: Path, compiled: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-dist-") as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", archive)
        version = run(home / "venv" / "bin" / "tidelog", "--version", cwd=home)
        assert ("without the compiled module" in version) is not compiled, version
        run(python, "-c", smoke(compiled), cwd=home)


def smoke(compiled: bool) -> str:
    """The program of the smoke test."""
    return SMOKE.replace("(COMPILED, COMPILED)", str((compiled, compiled)))


def main() -> None:
    if sys.argv[1:] == ["--smoke"]:
        run(sys.executable, "-c", smoke(compiled=True), cwd=Path(tempfile.gettempdir()))
        return
    print("building the source archive and two wheels", flush=True)
    for archive, compiled in build():
        try_out(archive, compiled)
        form = "compiled" if compiled else "plain Python"
        print(
            f"{archive.relative_to(PROJECT)}: {archive.stat().st_size / 1024:,.0f} KiB, {form}, works",
            flush=True,
        )


if __name__ == "__main__":
    main()
