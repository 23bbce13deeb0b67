"""The number of state partitions of a flow: what its checkpoint has, what a run asks for, and a change of it.

Spark writes the number of shuffle partitions into a checkpoint with the first micro-batch and keeps to it
from then on, whatever the session says later. `repartition` rewrites the state of a stopped pipeline.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.config import ConfigError
from tidelog.spark.files import Files, join
from tidelog.spark.pipelines.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidelog.spark")

SETTING = "state_partitions"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
DEFAULT = 4
MOST = 100_000
METADATA_LINE = 1
"""The line of an offset log that has Spark's settings."""


class CannotRepartition(RuntimeError):
    """The state of a flow cannot be rewritten now. The message says why, and what to do first."""


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """One flow before and after `repartition`. Without state it has no number."""

    flow: str
    before: int | None
    after: int | None


def asked_for(settings: Mapping[str, object], spark_conf: Mapping[str, str]) -> int | None:
    """The number that a run asks for by its settings or by Spark's; None if it does not care."""
    given = settings.get(SETTING, spark_conf.get(SHUFFLE_PARTITIONS))
    if given is None:
        return None
    text = str(given).strip()
    if not text.isdecimal() or not 0 < int(text) <= MOST:
        raise ConfigError(SETTING, text, f"expected a whole number, 1 to {MOST}")
    return int(text)


def in_checkpoint(files: Files, checkpoint: str) -> int | None:
    """The number that a checkpoint has; None if it keeps no state, or has no micro-batch yet."""
    if not files.entries(join(checkpoint, "state")):
        return None
    # A repartition that failed has left a micro-batch with its new number, which was not committed.
    batches = batches_in(files, join(checkpoint, "commits")) or batches_in(files, join(checkpoint, "offsets"))
    return in_batch(files, checkpoint, max(batches)) if batches else None


def in_batch(files: Files, checkpoint: str, batch: int) -> int | None:
    text = files.read(join(checkpoint, "offsets", str(batch)))
    return None if text is None else in_offset_log(text)


def batches_in(files: Files, folder: str) -> set[int]:
    """The micro-batches in an offset log or a commit log."""
    return {int(entry.name) for entry in files.entries(folder) if entry.name.isdecimal()}


def in_offset_log(text: str) -> int | None:
    """The number in a file of Spark's offset log."""
    lines = text.splitlines()
    try:
        return int(json.loads(lines[METADATA_LINE])["conf"][SHUFFLE_PARTITIONS])
    except (IndexError, ValueError, KeyError, TypeError):
        return None  # another version of Spark writes it in another way


def session_with(spark: SparkSession, count: int) -> SparkSession:
    """A session like this one whose new queries get that many state partitions. This one is not changed."""
    from pyspark.sql import SparkSession

    twin = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    twin.conf.set(SHUFFLE_PARTITIONS, str(count))
    return twin


def warn_of_other(flow: str, found: int | None, wanted: int | None) -> None:
    """Say so if a checkpoint has another number than the run asks for."""
    if found is not None and wanted is not None and found != wanted:
        pipeline = flow.partition("/")[0]
        log.warning(
            "%s keeps its state in %d partitions, as its checkpoint has them, and not in %d: stop it and run"
            " `tidelog pipeline repartition %s --state-partitions %d`",
            flow,
            found,
            wanted,
            pipeline,
            wanted,
        )


def repartition(spark: SparkSession, flow: str, checkpoint: str, count: int) -> Repartitioned:
    """Rewrite the state of one flow, which must not run. Raises CannotRepartition.

    Spark does so in a micro-batch of its own, without records: the numbers of micro-batches have a gap then.
    """
    files = Files(spark, checkpoint)
    before = in_checkpoint(files, checkpoint)
    if before is None or before == count:
        return Repartitioned(flow, before, before)
    if not hasattr(spark, "_streamingCheckpointManager"):
        raise CannotRepartition(
            f"this PySpark cannot change the state partitions of a checkpoint: PySpark 4.3 can; {flow} keeps"
            f" its {before}"
        )
    planned = max(batches_in(files, join(checkpoint, "offsets")))
    done = planned in batches_in(files, join(checkpoint, "commits"))
    if not done and in_batch(files, checkpoint, planned) == before:
        raise CannotRepartition(
            f"the last micro-batch of {flow} has not ended: finish it first with `tidelog pipeline run"
            f" {flow.partition('/')[0]} --trigger available-now`"
        )
    try:
        spark._streamingCheckpointManager.repartition(checkpoint, count)
    except Exception as error:
        raise CannotRepartition(
            f"Spark could not rewrite the state of {flow}: {reason(_java_words(error))}; mend that and repeat"
            " the command before you run the pipeline"
        ) from error
    return Repartitioned(flow, before, in_checkpoint(files, checkpoint))


def _java_words(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error) if java is None else str(java.getMessage())
