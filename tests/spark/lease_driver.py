"""`python -m tests.spark.lease_driver DATA HOST OPTIONS`: a driver of a pipeline, without Spark.

It obeys lines on standard input (acquire, check, close) and answers each with a line of JSON. HOST is the
name of the host that it takes itself to be on; an empty one is this host. OPTIONS are those of the store,
with `renew` and `lease` in seconds. `unsafe` plants a fault: the epoch is committed from a new snapshot.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import lease
from tidelog.spark.pipelines.lease import AlreadyRunning, Holder, Lease, LeaseLost, Times
from tidelog.spark.pipelines.state import StateFolder
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable

PIPELINE = "mine"


def move_to(host: str) -> None:
    setattr(lease, "this_machine", lambda: f"kernel of {host}")  # noqa: B010
    setattr(socket, "gethostname", lambda: host)  # noqa: B010


def commit_unsafely() -> None:
    safe = lease._commit

    def unsafe(table: DeltaTable, pipeline: str, epoch: int, holder: Holder) -> bool:
        print(json.dumps({"reached": "commit"}), flush=True)
        sys.stdin.readline()
        table.update_incremental()
        return safe(table, pipeline, epoch, holder)

    setattr(lease, "_commit", unsafe)  # noqa: B010


def obey(folder: StateFolder) -> None:
    held: Lease | None = None
    for line in sys.stdin:
        answer = "done"
        try:
            if line.strip() == "acquire":
                held = folder.leases.acquire(PIPELINE)
            elif held is None:
                answer = "holds nothing"
            elif line.strip() == "check":
                held.check()
            else:
                held.close()
        except (AlreadyRunning, LeaseLost) as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"answer": answer}), flush=True)


def main() -> None:
    data, host, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    times = Times(given.pop("renew"), given.pop("lease"))
    if host:
        move_to(host)
    if given.pop("unsafe", False):
        commit_unsafely()
    folder = StateFolder(data, Store(data, given), times)
    folder.leases.holder(PIPELINE)  # imports what an acquisition needs
    print(json.dumps({"answer": "ready"}), flush=True)
    obey(folder)


if __name__ == "__main__":
    main()
