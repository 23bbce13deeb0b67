"""The names of options: of the source, of the sink, of Spark itself, and of Kafka's clients.

An unknown name is refused with the nearest known one. Ignored, a typo such as `exactlyonc` would silently
write at least once.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping

from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition

log = logging.getLogger("tidelog.spark")

COMMON = ("bootstrapTimeoutMs", "failOnDataLoss")
SOURCE = (
    "assign",
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "filter",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsBy",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "partition.metadata.cache.ttl.ms",
    "publishGroup",
    "pushFilters",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "valueCheck",
    "valueFormat",
    "valueMode",
    "valueSchema",
    "valueTime",
    "valueTimeAheadMs",
)
SINK = (
    "decisionTopic",
    "exactlyOnce",
    "exactlyOnceBatch",
    "exactlyOnceName",
    "topic",
    "transactionalIdPrefix",
)
# Options that Spark reads itself, or adds, and passes on with the others.
SPARK = (
    "asyncProgressTrackingCheckpointIntervalMs",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingOverrideSinkSupportCheck",
    "checkpointLocation",
    "path",
    "queryName",
)
KAFKA = "kafka."
# How similar an unknown setting has to be to a known one to count as a typo.
NEAR = 0.8


def unknown_to_source(given: Iterable[str]) -> str | None:
    """The error in the names of a read's options, which are in lower case; None if all are known."""
    return _unknown(given, SOURCE, SINK, "source", {**consumer_definition(), **admin_definition()})


def unknown_to_sink(given: Iterable[str]) -> str | None:
    """The error in the names of a write's options, which are in lower case; None if all are known."""
    return _unknown(given, SINK, SOURCE, "sink", {**producer_definition(), **admin_definition()})


def _unknown(
    given: Iterable[str], own: Iterable[str], other: Iterable[str], side: str, settings: Collection[str]
) -> str | None:
    known = {name.lower(): name for name in (*own, *COMMON, *SPARK)}
    elsewhere = {name.lower() for name in other}
    for name in given:
        if name.startswith(KAFKA):
            wrong = _unknown_setting(name.removeprefix(KAFKA))
            if wrong is not None:
                return wrong
        elif name in elsewhere:
            log.warning("option %s changes nothing in the %s", name, side)
        elif name not in known and not name.startswith("_"):  # names with an underscore are Spark's own
            return f"option {name} is not known to the {side}{_hint(name, known, settings)}"
    return None


def _hint(name: str, known: Mapping[str, str], settings: Collection[str]) -> str:
    if name in settings:
        return f": did you mean {KAFKA}{name}?"
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f": did you mean {known[near[0]]}?"
    return f", which knows {', '.join(sorted(known.values(), key=str.lower))} and {KAFKA}*"


def _unknown_setting(name: str) -> str | None:
    """The error of a typo of a known setting. Other names may be for Java's clients: they log a warning."""
    known = {*consumer_definition(), *producer_definition(), *admin_definition()}
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    if near:
        return f"option {KAFKA}{name} is not known: did you mean {KAFKA}{near[0]}?"
    log.warning("option %s%s is not known to the clients here and changes nothing", KAFKA, name)
    return None
