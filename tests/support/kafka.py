"""Apache Kafka's own programs, from its published jars, for tests that are marked `kafka`.

The jars are fetched once with mvn into build/; TIDELOG_KAFKA_JARS names a folder that has a folder of them
for each version already, such as kafka3 and kafka4.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ARTIFACTS = {"kafka3": "3.9.2", "kafka4": "4.3.1"}
BUILD = Path(__file__).parent.parent.parent / "build"

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId>
<version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
</dependencies></project>"""


def class_path(kind: str) -> str:
    """The class path of a Kafka; the test is skipped where there is no Java or no way to get the jars."""
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    given = os.environ.get("TIDELOG_KAFKA_JARS")
    folder = Path(given) / kind if given else BUILD / kind
    if not (folder / ".complete").exists():
        _fetch(kind, folder)
    return f"{folder}/*"


def _fetch(kind: str, folder: Path) -> None:
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed, and TIDELOG_KAFKA_JARS names no folder with Kafka's jars")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(ARTIFACTS[kind]))
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=600)
    (folder / ".complete").touch()


def run_tool(
    kind: str, tool: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line tools, such as org.apache.kafka.tools.TopicCommand."""
    return subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(kind), tool, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )
