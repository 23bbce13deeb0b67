"""Tables on S3: the tasks write straight into the bucket, and one of two drivers is fenced."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.s3 import S3, s3_server
from tests.tables.arrow_rows import frame, without_spark
from tidelog.spark.pipelines.batch_metrics import MetricsFiles
from tidelog.spark.tables import Fenced, Tables, task_files
from tidelog.spark.tables.store import Store


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


def put(tables: Tables, batch: int) -> None:
    columns = {"n": pa.array([batch, batch + 10]), "part": pa.array(["a b", "x/y"])}
    tables.write(frame(columns), "events", writer="w", batch=batch, partition_by=("part",))


def numbers(tables: Tables) -> list[int]:
    return sorted(tables.delta("events").to_pyarrow_table().column("n").to_pylist())


def test_batches_are_in_the_bucket_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, other = without_spark("s3a://tables/root"), without_spark("s3://tables/root")
    put(tables, 0)
    put(tables, 0)
    assert numbers(other) == [0, 10]
    assert tables.names() == ["events"]
    rows = frame({"k": pa.array(["a", "b"]), "n": pa.array([1, 2])})
    tables.write(rows, "keyed", writer="w", batch=0, keys=("k",))
    tables.write(rows, "keyed", writer="w", batch=1, keys=("k",))
    assert tables.delta("keyed").to_pyarrow_table().num_rows == 2
    write = task_files.write_task

    def overtaken(*arguments: object) -> Iterator[pa.RecordBatch]:
        with pytest.MonkeyPatch.context() as usual:
            usual.setattr(task_files, "write_task", write)
            put(other, 1)
        yield from write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(task_files, "write_task", overtaken)
    with pytest.raises(Fenced):
        put(tables, 1)
    assert numbers(tables) == [0, 1, 10, 11]


def test_small_files_are_in_the_bucket(s3: S3) -> None:
    store = Store.of(None, "s3://tables/small")
    store.put("plans/one.json", b"{}")
    store.put("plans/one.json", b"[]")
    files = MetricsFiles(store)
    files.write("plans/two words.json", "ü")
    assert files.names("plans") == ["one.json", "two words.json"]
    assert [files.read(f"plans/{name}") for name in files.names("plans")] == ["[]", "ü"]
