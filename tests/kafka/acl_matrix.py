"""Records the authorization matrix from Kafka 3.9 (AclAuthorizer) and 4.3 (StandardAuthorizer).

`python -m tests.kafka.acl_matrix [kafka3|kafka4]` writes tests/data/acl_matrix_KIND.json.gz,
and from kafka3 tests/data/acl_requests.json.gz.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.authorization.acl_requests import play
from tests.authorization.matrix import Matrix, plain_connection, plain_settings
from tests.kafka.servers import new_kafka
from tests.support.ports import free_port
from tidelog.protocol.json import Json

DATA = Path(__file__).parent.parent / "data"
ACL_REQUESTS = DATA / "acl_requests.json.gz"
AUTHORIZERS = {
    "kafka3": "kafka.security.authorizer.AclAuthorizer",
    "kafka4": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


def recording(kind: str) -> Path:
    return DATA / f"acl_matrix_{kind}.json.gz"


@contextmanager
def authorizing_kafka(kind: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A Kafka with an authorizer; yields the address of its listener with SASL."""
    own, sasl, controller = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{own},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    settings = plain_settings() | {
        "listeners": listeners,
        "authorizer.class.name": AUTHORIZERS[kind],
        "super.users": "User:ANONYMOUS;User:admin",
        "unstable.api.versions.enable": "false",
    }
    if kind == "kafka4":
        settings["listeners"] = f"{listeners},CONTROLLER://127.0.0.1:{controller}"
        settings["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
        settings["listener.security.protocol.map"] = (
            "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
        )
    with new_kafka(kind, folder, settings, port=own):
        yield "127.0.0.1", sasl


def record(kind: str, folder: Path, *, with_requests: bool = True) -> dict[str, Json]:
    """The cells of the matrix; from Kafka 3.9 also the answers to requests for rules, into another file."""
    with authorizing_kafka(kind, folder) as address:
        if kind == "kafka3" and with_requests:
            write(ACL_REQUESTS, play(lambda: plain_connection(address, "admin")))
        matrix = Matrix(lambda user: plain_connection(address, user))
        matrix.prepare()
        return dict(matrix.play())


def write(path: Path, answers: dict[str, Json]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
    path.write_bytes(gzip.compress(f"{{\n{lines}\n}}\n".encode(), mtime=0))


def main(kinds: list[str]) -> None:
    for kind in kinds or list(AUTHORIZERS):
        with tempfile.TemporaryDirectory() as folder:
            cells = record(kind, Path(folder))
        write(recording(kind), cells)
        print(f"{kind}: {len(cells)} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
