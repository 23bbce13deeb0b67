"""Two writers of one table on S3: a batch is taken from one of them. Against moto, or a real store.

`make test-s3` runs the same against versitygw, a gateway to S3 on a local folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.s3 import S3, s3_server
from tests.support.scale import scale
from tests.support.versitygw import versitygw
from tests.support.wait import patience
from tidelog.spark.tables.compactor import Compactor
from tidelog.spark.tables.store import Store, s3_options

BATCHES = scale(5, 100)


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.s3)])
def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3]:
    with s3_server() if request.param == "moto" else versitygw(tmp_path) as server:
        yield server


def writer(server: S3, name: str, app: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tables.s3_writer", "s3://tables/root/events", name, app, str(BATCHES)],
        env={**os.environ, **server.environment},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(*processes: subprocess.Popen[str]) -> list[list[int]]:
    try:
        outputs = [process.communicate(timeout=patience(120))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output) for output in outputs]


def test_each_batch_is_taken_from_one_of_two_drivers_and_other_writers_lose_nothing(s3: S3) -> None:
    store = Store("s3://tables/root/events", s3_options("tables", s3.hadoop, {}))
    store.check_commits()
    one, other, alone = finished(writer(s3, "a", "same"), writer(s3, "b", "same"), writer(s3, "c", "own"))
    assert sorted(one + other) == list(range(BATCHES)), "no batch twice, none missing"
    assert alone == list(range(BATCHES))
    expected = Counter(f"{app}/{number}" for app in ("same", "own") for number in range(BATCHES))
    options = dict(store.options)

    def ids() -> Counter[str]:
        return Counter(DeltaTable(store.uri, storage_options=options).to_pyarrow_table()["id"].to_pylist())

    assert ids() == expected
    assert Compactor(store, small_files=4).run() == 2 * BATCHES
    assert ids() == expected
    assert len(DeltaTable(store.uri, storage_options=options).file_uris()) == 1
