"""A Spark session with fast settings for the data source, and errors that say what to install.

from tidelog.spark.session import session

spark = session("orders")
spark.readStream.format("tidelog").option("kafka.bootstrap.servers", "localhost:9092")...
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
INSTALL_JAVA = "apt-get install -y openjdk-17-jre-headless (or brew install openjdk@17), or set JAVA_HOME"
INSTALL_SPARK = "pip install 'tidelog[spark]'"

FAST: dict[str, str] = {
    # Rows travel between the JVM and the Python workers: a Unix socket takes less CPU than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Pass the filters of batch reads to the source.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Rename checkpoints with the file system's own call, which is faster than the default.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
LOCAL: dict[str, str] = {
    # On one machine the default of two hundred shuffle partitions makes two hundred tiny tasks.
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class SparkMissing(RuntimeError):
    """Spark cannot run here. The message says in one line what to do."""


def session(app: str = "tidelog", master: str | None = None, **conf: object) -> SparkSession:
    """Get or create a session. `conf` has Spark's settings: `**{"spark.ui.enabled": "false"}`.

    The default of `master` comes from spark-submit or the environment; otherwise it is the cores of this
    machine.
    """
    missing = why_spark_cannot_run()
    if missing is not None:
        raise SparkMissing(missing)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    chosen = settings(master, submitted() | {name: _text(value) for name, value in conf.items()})
    if chosen["spark.master"].startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # The workers on this machine need the packages of this Python; Spark would start any python3.
        os.environ["PYSPARK_PYTHON"] = worker_python()
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make `format("tidelog")` and `format("tidelog-table")` known to a session that is not from `session`.

    Spark looks for data sources with the `python3` of the PATH, unless PYSPARK_PYTHON was set before the
    session was created, and that Python may lack this package. Raises SparkMissing on a cluster with such a
    Python.
    """
    from tidelog.spark.source import TidelogDataSource
    from tidelog.spark.table_source import TableDataSource

    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable
    elif not _has_package(context.pythonExec):
        raise SparkMissing(
            f"Spark runs {context.pythonExec}, which has no tidelog: before the session is created, set"
            f" PYSPARK_PYTHON={sys.executable}, or the Python of the workers if that is another one"
        )
    spark.dataSource.register(TidelogDataSource)
    spark.dataSource.register(TableDataSource)


def _has_package(python: str) -> bool:
    """Whether a Python can import the data source."""
    try:
        done = subprocess.run([python, "-c", "import tidelog.spark.source"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def settings(master: str | None, conf: dict[str, str]) -> dict[str, str]:
    """The settings of the session: the user's, then our defaults."""
    chosen = master or conf.get("spark.master") or os.environ.get("MASTER") or _submitted_master()
    found = dict(FAST)
    if chosen is None:
        chosen = "local[*]"
    if chosen.startswith("local"):
        found |= LOCAL
    found["spark.master"] = chosen
    return found | conf


def worker_python() -> str:
    """The program of Spark's Python processes on this machine: this Python, with a faster start.

    Spark lets each of its many processes import PySpark from an archive without compiled files, which costs
    0.6 s of CPU. The same PySpark is installed here, so a script removes the archive from the path.
    """
    import pyspark

    home = os.environ.get("SPARK_HOME")
    installed = Path(pyspark.__file__).parent
    if os.name != "posix" or (home and Path(home).resolve() != installed.resolve()):
        return sys.executable
    folder = tempfile.mkdtemp(prefix="tidelog-spark-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = Path(folder) / "python"
    script.write_text(_LAUNCHER.format(python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script)


_LAUNCHER = """\
#!/bin/sh
kept=
IFS=:
for part in $PYTHONPATH; do
  case "$part" in
    */pyspark.zip) ;;
    *) kept="${{kept:+$kept:}}$part" ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def why_spark_cannot_run() -> str | None:
    """One line with what is missing and the command to install it; None if Spark can run."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return f"PySpark is not installed: {INSTALL_SPARK}"
    if os.environ.get("SPARK_REMOTE"):
        return None
    java = _java()
    if java is None:
        return f"Spark needs Java {LEAST_JAVA} or newer, and none is installed: {INSTALL_JAVA}"
    version = java_version(java)
    if version is not None and version < LEAST_JAVA:
        return f"Spark needs Java {LEAST_JAVA} or newer, and {java} is {version}: {INSTALL_JAVA}"
    return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return str(program) if program.exists() else None
    return shutil.which("java")


def java_version(program: str) -> int | None:
    """The major version of a Java program; None if it cannot be read."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def submitted() -> dict[str, str]:
    """The settings that spark-submit was given, if spark-submit started this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # the JVM of spark-submit has them
    return dict(SparkConf().getAll())


def _submitted_master() -> str | None:
    """The master that spark-submit or its shell was given."""
    master = submitted().get("spark.master")
    if master is not None:
        return master
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
    for flag, value in pairwise(arguments):
        if flag == "--master":
            return value
    return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
