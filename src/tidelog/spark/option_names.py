"""The names that options may have: of the source, of the sink, of Spark itself, and of Kafka's clients.

A name that nobody knows is refused with the nearest one that somebody does: left alone it would change
nothing, and `exactlyonc` would write at least once.
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
)
SINK = (
    "decisionTopic",
    "exactlyOnce",
    "exactlyOnceBatch",
    "exactlyOnceName",
    "topic",
    "transactionalIdPrefix",
)
# What Spark reads itself, or adds, and hands on with the others.
SPARK = (
    "asyncProgressTrackingCheckpointIntervalMs",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingOverrideSinkSupportCheck",
    "checkpointLocation",
    "path",
    "queryName",
)
KAFKA = "kafka."
# How near a setting has to be to one that is known to be taken for a slip of it.
NEAR = 0.8


def unknown_to_source(given: Iterable[str]) -> str | None:
    """What is wrong with the names of a read's options, given in lower case; None where nothing is."""
    return _unknown(given, SOURCE, SINK, "source", {**consumer_definition(), **admin_definition()})


def unknown_to_sink(given: Iterable[str]) -> str | None:
    """What is wrong with the names of a write's options, given in lower case; None where nothing is."""
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
    """A slip of a setting that is known; one that is far from all of them may be for Java's clients alone."""
    known = {*consumer_definition(), *producer_definition(), *admin_definition()}
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    if near:
        return f"option {KAFKA}{name} is not known: did you mean {KAFKA}{near[0]}?"
    log.warning("option %s%s is not known to the clients here and changes nothing", KAFKA, name)
    return None
