"""Records the authorization matrix from Kafka 3.9 (AclAuthorizer) and 4.3 (StandardAuthorizer).

`python -m tests.kafka.acl_matrix [kafka3|kafka4]` writes tests/data/acl_matrix_KIND.json.gz,
and from kafka3 tests/data/acl_requests.json.gz.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.authorization.acl_requests import play
from tests.authorization.matrix import Matrix, users
from tests.kafka.servers import free_port, new_kafka
from tests.support.raw import RawConnection
from tidelog.protocol.json import Json

DATA = Path(__file__).parent.parent / "data"
ACL_REQUESTS = DATA / "acl_requests.json.gz"
AUTHORIZERS = {
    "kafka3": "kafka.security.authorizer.AclAuthorizer",
    "kafka4": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


def recording(kind: str) -> Path:
    return DATA / f"acl_matrix_{kind}.json.gz"


def plain_connection(address: tuple[str, int], user: str) -> RawConnection:
    """A connection as a user whose password is its name."""
    connection = RawConnection(address)
    connection.call_json("SaslHandshake", 1, {"mechanism": "PLAIN"})
    token = base64.b64encode(f"\0{user}\0{user}".encode()).decode()
    answer = connection.call_json("SaslAuthenticate", 1, {"authBytes": token})
    assert answer["errorCode"] == 0, answer
    return connection


@contextmanager
def authorizing_kafka(kind: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A Kafka with an authorizer; yields the address of its listener with SASL."""
    own, sasl, controller = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{own},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    passwords = " ".join(f'user_{user}="{user}"' for user in users())
    settings = {
        "listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {passwords};"
        ),
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


def record(kind: str, folder: Path) -> dict[str, Json]:
    """The cells of the matrix; from Kafka 3.9 also the answers to requests for rules, into another file."""
    with authorizing_kafka(kind, folder) as address:
        if kind == "kafka3":
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
