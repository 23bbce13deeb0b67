"""The options of a run of pipelines, and what follows from them before Spark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.config import ConfigError
from tidelog.spark.pipelines.state_partitions import SETTING, asked_for
from tidelog.spark.session import submitted

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_DATA = "./tidelog-pipeline"
DEFAULT_TRIGGER = "10 seconds"
MAX_OFFSETS_PER_TRIGGER = 1_000_000
STOP_SECONDS = 60.0

_PROCESSING_TIME = re.compile(
    r"^\d+(\.\d+)? ?(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|days?)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, for all of its pipelines."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    data: str = DEFAULT_DATA
    master: str | None = None
    trigger: str = DEFAULT_TRIGGER
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of pipelines, `name` or `pipeline.name`."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the clients with Kafka's names, including security."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    create_topics: bool = False
    """Create missing topics of sources, too."""
    max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER
    stop_seconds: float = STOP_SECONDS
    """How long a stop waits for running micro-batches."""
    state_partitions: int | None = None
    """State partitions of new checkpoints; None takes the setting `state_partitions`, the session's or 4."""
    metrics_port: int | None = None
    """The port of Prometheus metrics; 0 takes a free one, None serves none."""
    metrics_host: str = "127.0.0.1"
    checkpoints: str = ""
    """The folder of checkpoints, on any file system of Hadoop. Empty: `checkpoints` below `data`."""
    spark_log: bool = False
    """Spark's log goes to `spark.log` in the status folder, not to this program's outputs."""


def trigger_arguments(text: str) -> dict[str, str | bool]:
    """The arguments of Spark's `trigger`."""
    plain = text.strip().lower()
    if plain in ("available-now", "availablenow"):
        return {"availableNow": True}
    if plain == "once":
        return {"once": True}
    if _PROCESSING_TIME.match(plain):
        # Spark knows the units only by their full names.
        number, unit = re.findall(r"[\d.]+|[a-z]+", plain)
        units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
        return {"processingTime": f"{number} {units.get(unit, unit)}"}
    raise ConfigError("trigger", text, 'expected available-now, once, or a time such as "10 seconds"')


def wanted_partitions(options: Options) -> int | None:
    """The number of state partitions that a run asks for; None if it does not care."""
    settings = dict(options.settings)
    if options.state_partitions is not None:
        settings[SETTING] = options.state_partitions
    return asked_for(settings, {**submitted(), **options.spark_conf})


def check_deploy_mode(options: Options) -> None:
    """Raise ConfigError for a driver that was started here and is to run in the cluster."""
    name = "spark.submit.deployMode"
    if options.spark_conf.get(name) == "cluster":
        raise ConfigError(
            name,
            "cluster",
            "this driver runs here; `tidelog pipeline submit` starts one in the cluster",
        )
