"""`tidelog pipeline report`: one page of HTML with plots of what the pipelines have written.

Local tables are read directly, without Spark and Java. Tables of other paths need a Spark session.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidelog.spark.pipelines.report_facts import Facts, gather
from tidelog.spark.pipelines.report_page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(
    data: str | os.PathLike[str], out: str | os.PathLike[str], spark: SparkSession | None = None
) -> Path:
    """Write the report on the tables in the data folder `data` to the local file `out`; returns its full
    path.

    A folder without tables gives a page that says so. A missing folder raises an error.
    """
    found = facts(data, spark)
    target = Path(out).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    made = page(found, os.fspath(data), datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.write_text(made, encoding="utf-8")
    unfinished.replace(target)  # readers of an older report never see half of this one
    return target


def facts(data: str | os.PathLike[str], spark: SparkSession | None = None) -> Facts:
    """The numbers of the report."""
    local = local_path(os.fspath(data))
    if local is None:
        return _facts_by_spark(os.fspath(data), spark)
    from tidelog.spark.pipelines.report_readers import READ_ATTEMPTS, LocalReader, TablesChanged

    if not local.is_dir():
        raise FileNotFoundError(
            f"{local} does not exist: name the data folder that the pipelines write to, or run them first"
        )
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return gather(LocalReader(local / "tables"))
        except TablesChanged:
            continue
    return gather(LocalReader(local / "tables"))


def local_path(data: str) -> Path | None:
    """The local folder of a path or a file: address; None for other addresses."""
    parts = urlsplit(data)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in data else Path(data)


def _facts_by_spark(data: str, spark: SparkSession | None) -> Facts:
    from tidelog.spark.pipelines.report_readers import SparkReader
    from tidelog.spark.session import session
    from tidelog.spark.tables import Tables

    used = spark or session("tidelog report")
    try:
        return gather(SparkReader(Tables(used, f"{data.rstrip('/')}/tables")))
    finally:
        if spark is None:
            used.stop()
