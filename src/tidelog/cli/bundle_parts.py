"""The parts of a bundle. A part that fails leaves a line in errors.txt, and the others go on."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cli.bundle_archive import Archive
from tidelog.cli.redaction import REMOVED, is_secret_name
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, ConfigEntry

EARLIEST, LATEST = -2, -1
MOST_LOG_BYTES = 50 << 20  # of each file, from its end
METRICS_SECONDS = 10.0
# A line that begins with a moment, as brokers and Kafka write them.
MOMENT = re.compile(r"^\W?(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})")
PACKAGES = (
    "click",
    "rich",
    "cryptography",
    "zstandard",
    "lz4",
    "cramjam",
    "isal",
    "crc32c",
    "pyarrow",
    "duckdb",
)


class Collector:
    """Puts the parts into an archive."""

    def __init__(self, archive: Archive, admin: Admin) -> None:
        self._archive = archive
        self._admin = admin
        self._errors: list[str] = []
        self._listeners: list[str] = []

    def _part(self, name: str, make: Callable[[], object]) -> None:
        try:
            value = make()
            if isinstance(value, str):
                self._archive.add_text(name, value)
            else:
                self._archive.add_json(name, value)
        except (KafkaError, OSError, ValueError) as error:
            self._errors.append(f"{name}: {type(error).__name__}: {error}")

    def finish(self) -> int:
        """Add the list of what is missing; returns its length."""
        if self._errors:
            self._archive.add_text("errors.txt", "\n".join(self._errors) + "\n")
        return len(self._errors)

    # This machine

    def machine(self, settings: Mapping[str, object]) -> None:
        from tidelog.cli.doctor import examine

        self._part("versions.json", versions)
        self._part("client.json", lambda: {name: str(value) for name, value in settings.items()})
        self._part("doctor.json", lambda: [asdict(found) for found in examine(0, Path.cwd())])

    def broker_files(self, files: Mapping[str, Mapping[str, object]]) -> None:
        for index, (name, settings) in enumerate(files.items()):
            self._part(f"broker-files/{index}-{Path(name).name}.json", partial(dict, settings))

    def logs(self, paths: Iterable[str], since_ms: int) -> None:
        for index, path in enumerate(log_files(paths)):
            self._part(f"logs/{index}-{path.name}", partial(lines_since, path, since_ms))

    # The cluster

    def cluster(self) -> bool:
        """Add what the cluster tells; False if no broker answers."""
        from tidelog.cli.cluster_health import ask_health

        admin = self._admin
        try:
            admin.connect()
        except KafkaError as error:
            self._errors.append(f"cluster: {error}")
            return False
        self._part("health.json", lambda: ask_health(admin, 10.0).as_json())
        self._part("cluster.json", self._cluster)
        self._part("broker-configs.json", self._broker_configs)
        self._part("topics.json", self._topics)
        self._part("topic-configs.json", self._topic_configs)
        self._part("offsets.csv", self._offsets)
        self._part("groups.json", self._groups)
        self._part("log-dirs.json", self._log_dirs)
        self._part("transactions.json", lambda: [asdict(each) for each in admin.list_transactions()])
        self._part("reassignments.json", self._reassignments)
        return True

    def _cluster(self) -> object:
        found = self._admin.describe_cluster()
        return {
            "cluster": found.cluster_id,
            "controller": found.controller,
            "brokers": [
                {
                    "id": node.id,
                    "address": node.address,
                    "rack": node.rack,
                    "apis": {
                        str(key): list(versions)
                        for key, versions in self._admin.describe_api_versions(node.id).items()
                    },
                }
                for node in found.nodes
            ],
        }

    def _broker_configs(self) -> object:
        from tidelog.clients.admin.configs import ConfigResource, ResourceType

        nodes = [str(node.id) for node in self._admin.describe_cluster().nodes]
        found = self._admin.describe_configs([ConfigResource(ResourceType.BROKER, node) for node in nodes])
        for entries in found.values():
            listener = entries.get("metrics.listener")
            if listener is not None and listener.value:
                self._listeners.append(listener.value)
        return {resource.name: config_values(entries.values()) for resource, entries in found.items()}

    def _names(self) -> list[str]:
        return sorted(self._admin.list_topics(list_internal=True))

    def _topics(self) -> object:
        found = self._admin.describe_topics(self._names(), partial=True)
        return [
            {
                "name": topic.name,
                "id": topic.topic_id,
                "internal": topic.is_internal,
                "partitions": [
                    {
                        "partition": each.partition,
                        "leader": each.leader,
                        "replicas": each.replicas,
                        "isr": each.isr,
                        "offline": each.offline_replicas,
                    }
                    for each in topic.partitions
                ],
            }
            for topic in found.values()
        ]

    def _topic_configs(self) -> object:
        from tidelog.clients.admin.configs import ConfigResource, ResourceType
        from tidelog.config.entries import ConfigSource

        found = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in self._names()]
        )
        return {
            resource.name: config_values(
                entry for entry in entries.values() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG
            )
            for resource, entries in found.items()
        }

    def _offsets(self) -> str:
        topics = self._admin.describe_topics(self._names(), partial=True)
        keys = [
            (topic.name, each.partition)
            for topic in topics.values()
            for each in topic.partitions
            if each.leader is not None
        ]
        firsts = self._admin.list_offsets(dict.fromkeys(keys, EARLIEST), partial=True)
        ends = self._admin.list_offsets(dict.fromkeys(keys, LATEST), partial=True)
        lines = ["topic,partition,start,end"]
        lines += [f"{key[0]},{key[1]},{firsts[key].offset},{ends[key].offset}" for key in keys if key in ends]
        return "\n".join(lines) + "\n"

    def _groups(self) -> object:
        from tidelog.cli.consumer_groups_describe import groups_as_json

        ids = [group.group_id for group in self._admin.list_consumer_groups()]
        described = self._admin.describe_consumer_groups(ids, partial=True)
        return groups_as_json(self._admin, [found for _, found in sorted(described.items())])

    def _log_dirs(self) -> object:
        from tidelog.cli.log_dirs import rows

        nodes = [node.id for node in self._admin.describe_cluster().nodes]
        found = self._admin.describe_log_dirs(nodes, partial=True)
        return [row for broker, folders in found.items() for row in rows(broker, folders, ())]

    def _reassignments(self) -> object:
        found = self._admin.list_partition_reassignments()
        return [
            {"topic": topic, "partition": index, **each._asdict()} for (topic, index), each in found.items()
        ]

    # Metrics

    def metrics(self, addresses: Sequence[str], interval: float) -> None:
        """Two snapshots of each endpoint, so that counters show rates."""
        wanted = addresses or self._listeners
        for number in (1, 2):
            if number == 2 and wanted:
                time.sleep(interval)
            for index, address in enumerate(wanted):
                self._part(f"metrics/{index}-{number}.txt", partial(scraped, address))


def versions() -> dict[str, object]:
    from tidelog import __version__
    from tidelog.records.loops import COMPILED

    return {
        "tidelog": __version__,
        "compiled": COMPILED,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def config_values(entries: Iterable[ConfigEntry]) -> dict[str, object]:
    """Settings with their source. The value of a sensitive one is removed, even if the broker sent it."""
    return {
        entry.name: {
            "value": REMOVED if entry.is_sensitive or is_secret_name(entry.name) else entry.value,
            "from": entry.source.name,
        }
        for entry in entries
    }


def log_files(paths: Iterable[str]) -> Iterator[Path]:
    for name in paths:
        path = Path(name)
        if path.is_dir():
            yield from sorted(path.glob("*.log"))
        else:
            yield path


def lines_since(path: Path, since_ms: int) -> str:
    """The lines of a log file from a time on. Lines without a time belong to the line before."""
    since = datetime.fromtimestamp(since_ms / 1000).isoformat(sep=" ", timespec="seconds")
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - MOST_LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    kept: list[str] = []
    is_later = True
    for line in text.splitlines():
        if found := MOMENT.match(line):
            is_later = f"{found[1]} {found[2]}" >= since
        if is_later:
            kept.append(line)
    return "\n".join(kept) + "\n"


def scraped(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{address} is no address of metrics")
    base = url.rstrip("/").removesuffix("/metrics")  # the broker prints its address with /metrics
    with urllib.request.urlopen(f"{base}/metrics", timeout=METRICS_SECONDS) as answer:
        data: bytes = answer.read()
    return data.decode("utf-8", "replace")
