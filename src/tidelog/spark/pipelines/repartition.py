"""Changes the number of state partitions of stopped pipelines, which Spark keeps in their checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import state_partitions
from tidelog.spark.pipelines.declare import Pipeline
from tidelog.spark.pipelines.query import Place
from tidelog.spark.pipelines.registry import find_all
from tidelog.spark.pipelines.run_options import Options, wanted_partitions
from tidelog.spark.pipelines.run_session import check_spark, new_session, wait_for_old_jvm
from tidelog.spark.pipelines.runner import state_folder
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.pipelines.state_partitions import SETTING, Repartitioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repartition(
    names: Iterable[str | Pipeline],
    count: int,
    options: Options | None = None,
    *,
    spark: SparkSession | None = None,
) -> list[Repartitioned]:
    """Change the number of state partitions of stopped pipelines, flow by flow.

    Raises AlreadyRunning or CannotRepartition. The flows before the one that failed are changed then.
    """
    options = replace(options or Options(), state_partitions=count)
    wanted_partitions(options)
    if spark is None:
        check_spark()
    pipelines = find_all(names)
    given = {name: value for name, value in options.settings.items() if name != SETTING}
    settings = resolve(pipelines, given)
    folder = state_folder(options, spark)
    place = Place("", options.data.rstrip("/"), {}, 0, options.checkpoints)
    with ExitStack() as stack:
        for pipeline in pipelines:
            claim = folder.claim(pipeline.name)
            stack.callback(claim.close)
            wait_for_old_jvm(claim.before)
        session = spark
        if session is None:
            session = new_session(options)
            stack.callback(session.stop)
        return [
            state_partitions.repartition(
                session, f"{pipeline.name}/{flow.name}", place.checkpoint(pipeline.name, flow.name), count
            )
            for pipeline in pipelines
            for flow in pipeline.flows(settings[pipeline.name])
        ]
