"""Where tables are: a local or network folder, an S3-compatible store or HDFS, with its credentials.

`Store.of(spark, root)` takes the credentials from Spark's Hadoop settings (`fs.s3a.*`, `dfs.*`) or from the
environment (`AWS_*`, `HADOOP_CONF_DIR`). No credential is in a representation of a store or in its errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import unquote, urlsplit

from tidelog.spark.tables.errors import TableError

if TYPE_CHECKING:
    import pyarrow.fs
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

S3_SCHEMES = ("s3", "s3a", "s3n")
SUPPORTED = "a folder, s3://bucket/folder or hdfs://host/folder"

# Names of delta-rs, and the environment's names for the same, the first one first.
KEY, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
ENDPOINT, REGION = "AWS_ENDPOINT_URL", "AWS_REGION"
HOSTED, ALLOW_HTTP, UNSIGNED = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE"
FROM_ENVIRONMENT: dict[str, tuple[str, ...]] = {
    ENDPOINT: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    REGION: ("AWS_REGION", "AWS_DEFAULT_REGION"),
    HOSTED: (HOSTED,),
    ALLOW_HTTP: (ALLOW_HTTP,),
    UNSIGNED: (UNSIGNED,),
}
DEFAULT_REGION = "us-east-1"
HADOOP_DEFAULTS = "core-default.xml"
# Without conditional writes two writers would commit the same version, one over the other.
CONDITIONAL_PUT = "AWS_CONDITIONAL_PUT"
HDFS_SETTINGS = re.compile(
    r"fs\.defaultFS|fs\.viewfs\..*|dfs\.nameservices|dfs\.ha\..*|dfs\.namenode\.rpc-address.*"
    r"|dfs\.client\.failover\..*|dfs\.data\.transfer\.protection|hadoop\.security\.authentication"
)
_SECRET_OPTIONS = frozenset({KEY, SECRET, TOKEN})
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MASK = "******"

Setting = Callable[[str], str | None]
"""A Hadoop setting by its name, or None."""


class _Entry(Protocol):
    def getKey(self) -> str: ...
    def getValue(self) -> str | None: ...


class _Entries(Protocol):
    def hasNext(self) -> bool: ...
    def next(self) -> _Entry: ...


class _Configuration(Protocol):
    """The methods of org.apache.hadoop.conf.Configuration that are used here."""

    def get(self, name: str) -> str | None: ...
    def getPassword(self, name: str) -> Sequence[str] | None: ...
    def getPropertySources(self, name: str) -> Sequence[str] | None: ...
    def iterator(self) -> _Entries: ...


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of the tables, and how to reach it. It can be sent to Spark's tasks."""

    uri: str
    """For delta-rs: an absolute path, or a URI that begins with s3:// or hdfs://."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The storage options of delta-rs, with credentials."""

    @classmethod
    def of(cls, spark: SparkSession | None, root: str | Path) -> Store:
        """The store of `root`. Raises TableError for a root that tables cannot be in."""
        if spark is not None:
            refuse_connect(spark)
        text = str(root)
        scheme = urlsplit(text).scheme.lower() if "://" in text or text.startswith("file:") else ""
        setting = _hadoop_settings(spark)
        if scheme == "" and spark is not None:
            text, scheme = _qualified(spark, text)
        if scheme in ("", "file"):
            return cls(_local(text))
        parts = urlsplit(text)
        if parts.username or parts.password:
            raise TableError(
                f"the address of the tables in {parts.hostname} has credentials in it: set fs.s3a.access.key"
                " and fs.s3a.secret.key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, instead"
            )
        place = f"{parts.netloc}{parts.path}".rstrip("/")
        if scheme in S3_SCHEMES:
            return cls(f"s3://{place}", s3_options(parts.netloc, setting, os.environ))
        if scheme in ("hdfs", "viewfs"):
            return cls(f"{scheme}://{place}", _hdfs_options(spark))
        raise TableError(f"tables cannot be in {scheme}://{place}: give {SUPPORTED}")

    @property
    def is_s3(self) -> bool:
        return self.uri.startswith("s3://")

    @property
    def is_local(self) -> bool:
        return self.uri.startswith("/")

    @property
    def spark_uri(self) -> str:
        """The same place by the name that Spark's file systems know: s3a://, hdfs:// or file:///."""
        if self.is_s3:
            return f"s3a://{self.uri.removeprefix('s3://')}"
        return f"file://{self.uri}" if self.is_local else self.uri

    def below(self, *names: str) -> Store:
        """A place below this one, such as a table: `store.below("credits")`."""
        return Store("/".join((self.uri.rstrip("/"), *names)), self.options)

    def delta(self, *, version: int | None = None) -> DeltaTable:
        """A snapshot of the table in this place; the newest one by default. Raises TableError."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self.errors():
            try:
                return DeltaTable(self.uri, version=version, storage_options=dict(self.options))
            except TableNotFoundError:
                raise TableError(f"there is no table in {self.uri}") from None

    def is_table(self) -> bool:
        from deltalake import DeltaTable

        with self.errors():
            return DeltaTable.is_deltatable(self.uri, storage_options=dict(self.options))

    def names(self) -> list[str]:
        """The folders in this place, sorted; nothing if the place does not exist."""
        from pyarrow.fs import FileSelector, FileType

        if self.is_local and not Path(self.uri).is_dir():
            return []
        with self.errors():
            found = self.files().get_file_info(FileSelector("", allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.type == FileType.Directory)

    def files(self) -> pyarrow.fs.FileSystem:
        """The files of this place, with paths below it. The caller gets plain names, not encoded ones."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        return fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.options)))

    def put(self, path: str, data: bytes) -> None:
        """Write a small file, in the place of one that is there. A local folder has to exist."""
        if self.is_local:
            with self.files().open_output_stream(path) as stream:
                stream.write(data)
            return
        from deltalake._internal import DeltaFileSystemHandler

        # PyArrow's wrapper of this class takes no bytes from Python: it passes buffers on.
        handler = DeltaFileSystemHandler(table_uri=self.uri, options=dict(self.options), known_sizes=None)
        target = handler.open_output_stream(path, {})
        target.write(data)
        target.close()  # type: ignore[attr-defined]  # missing from the stub; without it nothing is written

    def check_commits(self) -> None:
        """Prove that of two writers of one version the store refuses one. Raises TableError if it does not.

        S3 behind an endpoint of one's own is tried, if its key and secret are known here: AWS has conditional
        writes, and local folders and HDFS create a file once.
        """
        endpoint, key, secret = (self.options.get(name) for name in (ENDPOINT, KEY, SECRET))
        if not self.is_s3 or not endpoint or not key or not secret:
            return
        from tidelog.spark.tables.conditional_put import S3Place

        bucket, _, folder = self.uri.removeprefix("s3://").partition("/")
        region, token = self.options.get(REGION, DEFAULT_REGION), self.options.get(TOKEN, "")
        with self.errors():
            found = S3Place(endpoint, bucket, folder, region, key, secret, token).has_conditional_writes()
        if found is None:
            raise TableError(f"tables in {self.uri}: the store does not let this key write there")
        if not found:
            raise TableError(
                f"the store of {self.uri} has no conditional writes (If-None-Match): two writers could"
                " overwrite each other's commits. Use a store that has them"
            )

    @contextmanager
    def remote_errors(self) -> Iterator[None]:
        """The same as `errors` for a store with credentials. Errors of a local folder stay as they are."""
        if self.is_local:
            yield
            return
        with self.errors():
            yield

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the store into TableErrors of one line, without credentials."""
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        try:
            yield
        except (TableNotFoundError, CommitFailedError):
            raise
        except (DeltaError, OSError) as error:
            raise TableError(f"tables in {self.uri}: {self.without_secrets(str(error))}") from None

    def without_secrets(self, text: str) -> str:
        """A text for people: one line, no colours, no credential of this store."""
        plain = " ".join(_COLOURS.sub("", text).replace("↳", "-").split())
        for name in _SECRET_OPTIONS:
            if self.options.get(name):
                plain = plain.replace(self.options[name], _MASK)
        return plain


def refuse_connect(spark: SparkSession) -> None:
    """Raise TableError for a session of Spark Connect, which has no JVM in this process."""
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise TableError(
            "tables and pipelines use the JVM of the driver, and a session of Spark Connect has none here: "
            "make a session with a master, such as tidelog.spark.session.session(master='spark://host:7077')"
        )


def s3_options(bucket: str, setting: Setting, environment: Mapping[str, str]) -> dict[str, str]:
    """The options of an S3 store: of Spark's Hadoop settings, then of the environment.

    A key always goes with the secret of the same place. Without any, delta-rs looks for credentials as AWS'
    own tools do: profiles, web identities, roles of the machine.
    """

    def of_bucket(name: str) -> str | None:
        return setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}") or None

    found: dict[str, str] = {}
    for name, names in FROM_ENVIRONMENT.items():
        value = next((environment[each] for each in names if environment.get(each)), None)
        if value is not None:
            found[name] = value
    if of_bucket("access.key"):
        held = {KEY: "access.key", SECRET: "secret.key", TOKEN: "session.token"}
        found |= {name: value for name, hadoop in held.items() if (value := of_bucket(hadoop))}
    elif environment.get(KEY):
        found |= {name: environment[name] for name in (KEY, SECRET, TOKEN) if environment.get(name)}
    if "AnonymousAWSCredentialsProvider" in (of_bucket("aws.credentials.provider") or ""):
        found[UNSIGNED] = "true"
    endpoint = of_bucket("endpoint") or found.get(ENDPOINT)
    if endpoint:
        plain_http = (of_bucket("connection.ssl.enabled") or "true").lower() == "false"
        if "://" not in endpoint:
            endpoint = f"{'http' if plain_http else 'https'}://{endpoint}"
        found[ENDPOINT] = endpoint
        # A store in one's own network has no DNS names for buckets, unless its settings say so.
        path_style = of_bucket("path.style.access") or ("false" if found.get(HOSTED) == "true" else "true")
        found[HOSTED] = "false" if path_style.lower() == "true" else "true"
        if endpoint.startswith("http://"):
            found[ALLOW_HTTP] = "true"
    found[REGION] = of_bucket("endpoint.region") or found.get(REGION) or DEFAULT_REGION
    _check_conditional_writes(bucket, environment)
    return found


def _check_conditional_writes(bucket: str, environment: Mapping[str, str]) -> None:
    for name in (CONDITIONAL_PUT, "CONDITIONAL_PUT"):
        value = next((environment[each] for each in (name, name.lower()) if each in environment), "etag")
        if value.strip().lower() != "etag":
            raise TableError(
                f"{name}={value} switches conditional writes off, and without them two writers of the tables"
                f" in s3://{bucket} could overwrite each other's commits: remove it"
            )


def _hadoop_settings(spark: SparkSession | None) -> Setting:
    """Settings of Hadoop as Spark knows them; secrets may be in Hadoop's credential providers."""
    if spark is None:
        return lambda name: None
    configuration = _configuration(spark)

    def setting(name: str) -> str | None:
        value = spark.conf.get(f"spark.hadoop.{name}", None)
        if value is None and name.endswith((".key", ".token")):
            characters = configuration.getPassword(name)
            value = "".join(characters) if characters is not None else None
        return value if value is not None else _chosen(configuration, name)

    return setting


def _chosen(configuration: _Configuration, name: str) -> str | None:
    """A setting of the user, or None. Hadoop's defaults fit AWS alone, so they do not count."""
    value = configuration.get(name)
    sources = configuration.getPropertySources(name) if value is not None else None
    return None if sources is not None and list(sources) == [HADOOP_DEFAULTS] else value


def _configuration(spark: SparkSession) -> _Configuration:
    context = spark._jsc
    assert context is not None, "Hadoop's settings are reached through the driver's JVM"
    return cast(_Configuration, context.hadoopConfiguration())


def _qualified(spark: SparkSession, path: str) -> tuple[str, str]:
    """A path without a scheme in Hadoop's default file system, and the scheme."""
    default = urlsplit(str(_configuration(spark).get("fs.defaultFS") or "file:///")).scheme
    if default in ("", "file"):
        return path, ""
    if default in S3_SCHEMES:
        raise TableError(f"tables in {path}: give the whole address, s3://bucket/folder")
    from tidelog.spark.files import Files

    return Files(spark, path).root, default


def _local(text: str) -> str:
    path = text
    if text.startswith("file:"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise TableError(f"tables cannot be in {text}: a file on {parts.netloc} has to be mounted here")
        path = unquote(parts.path)
    found = os.path.abspath(os.path.expanduser(path))
    for sign, name in (("%", "percent sign"), ("\\", "backslash")):
        if sign in found:
            raise TableError(f"tables cannot be in {found}: a {name} in a folder's name confuses readers")
    return found


def _hdfs_options(spark: SparkSession | None) -> dict[str, str]:
    """The name nodes as Spark knows them; delta-rs also reads the files in HADOOP_CONF_DIR by itself."""
    if spark is None:
        return {}
    found: dict[str, str] = {}
    entries = _configuration(spark).iterator()
    while entries.hasNext():
        entry = entries.next()
        name, value = str(entry.getKey()), entry.getValue()
        if HDFS_SETTINGS.fullmatch(name) and value is not None:
            found[name] = str(value)
    return found
