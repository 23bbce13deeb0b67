"""Apache Kafka's own programs, from its published jars, for tests that are marked `kafka`.

The jars are fetched once, by name, with mvn into .cache/kafka/; TIDELOG_KAFKA_JARS names a folder that has a
folder of them for each version already, kafka3 and kafka4. `python -m tests.kafka.jars` fetches them, or
says in one line what is missing; with one of the two names it fetches that one and prints its class path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

VERSIONS = {"kafka3": "3.9.2", "kafka4": "4.3.1"}
CACHE = Path(__file__).parent.parent.parent / ".cache" / "kafka"
# Tools live for a second or two: the quick compiler alone starts them in half the time.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
TOOL_SECONDS = 180

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId>
<version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
</dependencies></project>"""


def missing(kind: str) -> str | None:
    """What has to be installed before a Kafka can run, None where nothing is missing."""
    if shutil.which("java") is None:
        return "Java 17 or newer is not installed: java is not on the path"
    if not _complete(kind) and shutil.which("mvn") is None:
        return "Kafka's jars are not here and cannot be fetched: mvn is not on the path"
    return None


def class_path(kind: str) -> str:
    """The class path of a Kafka; the test is skipped where there is no Java or no way to get the jars."""
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    if not _complete(kind):
        _fetch(kind)
    return f"{_folder(kind)}/*"


def run_tool(
    kind: str, tool: str, *arguments: str, cwd: Path | None = None, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line tools, such as org.apache.kafka.tools.TopicCommand."""
    return subprocess.run(
        [*JAVA, "-cp", class_path(kind), tool, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
        cwd=cwd,
        input=given,
    )


def _folder(kind: str) -> Path:
    given = os.environ.get("TIDELOG_KAFKA_JARS")
    return Path(given) / kind if given else CACHE / f"{kind}-{VERSIONS[kind]}"


def _complete(kind: str) -> bool:
    return (_folder(kind) / ".complete").exists()


def _fetch(kind: str) -> None:
    folder = _folder(kind)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(VERSIONS[kind]))
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    # Standard output has the class path for those who ask: mvn writes colour codes even when it is quiet.
    subprocess.run(
        [*command, f"-DoutputDirectory={folder}"], check=True, timeout=900, stdout=sys.stderr.fileno()
    )
    (folder / ".complete").touch()


def main(kinds: Sequence[str]) -> int:
    for kind in kinds or VERSIONS:
        version = VERSIONS[kind]
        reason = missing(kind)
        if reason is not None:
            print(f"Apache Kafka {version} cannot run: {reason}", file=sys.stderr)
            return 1
        if not _complete(kind):
            print(f"fetching the jars of Apache Kafka {version}", file=sys.stderr)
            try:
                _fetch(kind)
            except subprocess.SubprocessError as error:
                print(f"the jars of Apache Kafka {version} could not be fetched: {error}", file=sys.stderr)
                return 1
    for kind in kinds:
        print(class_path(kind))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
