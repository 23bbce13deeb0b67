"""An S3 server of moto in a process of its own: delta-rs may hold Python's lock during a request.

`python -m tests.support.s3` prints its port and ends with its standard input.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY, SECRET = "PLANTEDACCESSKEYID", "planted/secret+access=key"
IGNORING = "--ignore-conditions"


@dataclass(frozen=True, slots=True)
class S3:
    """A running server with the bucket `tables`."""

    endpoint: str
    key: str = KEY
    secret: str = SECRET

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that uses the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def hadoop(self, name: str) -> str | None:
        """The Hadoop settings of a session that uses the server."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.access.key": self.key,
            "fs.s3a.secret.key": self.secret,
            "fs.s3a.path.style.access": "true",
        }.get(name)

    def client(self) -> Any:
        import boto3

        held = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **held)


@contextmanager
def s3_server(*, ignores_conditions: bool = False) -> Iterator[S3]:
    """A server. One that ignores conditions takes every PUT, as old S3-compatible stores do."""
    command = [sys.executable, "-m", "tests.support.s3", *([IGNORING] if ignores_conditions else [])]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        server = S3(f"http://127.0.0.1:{int(process.stdout.readline())}")
        server.client().create_bucket(Bucket="tables")
        yield server
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    one_at_a_time = threading.Lock()
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if IGNORING in sys.argv:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        # moto looks for the object and stores it in two steps: of two conditional writes both could succeed.
        with one_at_a_time:
            return list(moto(environ, start_response))

    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
