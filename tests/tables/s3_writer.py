"""A process that commits batches to a table on S3 beside another one, and prints which it won."""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa
from deltalake import Schema
from deltalake.transaction import AddAction
from pyarrow import parquet

from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.statistics import statistics
from tidelog.spark.tables.store import Store


def main(uri: str, name: str, writer: str, batches: int) -> None:
    store = Store.of(None, uri)
    log = DeltaLog(store.uri, store.options)
    rows = pa.table({"id": [""]})
    log.create(Schema.from_arrow(rows.schema))
    won = []
    for number in range(batches):
        batch = Batch(writer, number)
        path = f"part-{name}-{number}.parquet"
        try:
            snapshot = log.snapshot()
            if snapshot.has(batch):
                continue
            footers: list[parquet.FileMetaData] = []
            with store.files().open_output_stream(path) as stream:
                mine = pa.table({"id": [f"{writer}/{number}"]})
                parquet.write_table(mine, stream, metadata_collector=footers)
            size = store.files().get_file_info(path).size
            log.commit(
                snapshot,
                batch,
                [AddAction(path, size, {}, time.time_ns() // 10**6, True, statistics(footers[0]))],
            )
        except TableError:
            continue  # the other one was faster
        won.append(number)
    print(json.dumps(won))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))  # type: ignore[call-arg]
