"""versitygw, an S3 server on a local folder, for tests that are marked `s3`.

It is built once, with Go, into .cache/s3. `python -m tests.support.versitygw` builds it, or says in one line
what is missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.s3 import KEY, S3, SECRET
from tests.support.wait import eventually

MODULE = "github.com/versity/versitygw/cmd/versitygw@latest"
PROGRAM = Path(__file__).parents[2] / ".cache" / "s3" / "versitygw"


@contextmanager
def versitygw(folder: Path) -> Iterator[S3]:
    """A server with the bucket `tables`."""
    if not PROGRAM.exists():
        pytest.skip("versitygw is not built: make test-s3")
    port = free_port()
    (folder / "buckets").mkdir()
    command = [str(PROGRAM), "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*command, "posix", str(folder / "buckets")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: _listens(port), "the S3 server listens", 30)
        server = S3(f"http://127.0.0.1:{port}")
        server.client().create_bucket(Bucket="tables")
        yield server
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    if PROGRAM.exists():
        return 0
    if shutil.which("go") is None:
        print("the S3 server versitygw is built with Go, which is not installed", file=sys.stderr)
        return 1
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    print("Building versitygw with packages from Go's proxy, once; it takes some minutes.")
    built = subprocess.run(
        ["go", "install", MODULE], env={**os.environ, "GOBIN": str(PROGRAM.parent)}, check=False
    )
    return built.returncode


if __name__ == "__main__":
    raise SystemExit(main())
