"""The places of tables: their names, their credentials, and what is refused. Without Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.s3 import KEY, S3, SECRET, s3_server
from tidelog.spark.pipelines.batch_metrics import BatchRecord, MetricsFiles, MetricsLog, MetricsTable
from tidelog.spark.pipelines.lease import Leases
from tidelog.spark.pipelines.reasons import flow_failed
from tidelog.spark.pipelines.replay import Replays, Selection
from tidelog.spark.pipelines.run_files import run_files
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.store import Store, s3_options
from tidelog.spark.tables.task_files import Target, write_task

ROWS = pa.table({"user": ["u1", "u2"], "day": ["2026-11-15", "2026-11-16"]})


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


def s3_store(server: S3, folder: str = "root") -> Store:
    return Store(f"s3://tables/{folder}", s3_options("tables", server.hadoop, {}))


def no_setting(name: str) -> str | None:
    return None


@pytest.mark.parametrize(
    "name", ["plain", "with space", "number#1", "what?", "grüße", "a+b", "x=y", "a*b", "{x}"]
)
def test_a_local_folder_may_have_any_name_but_some_signs(tmp_path: Path, name: str) -> None:
    store = Store.of(None, tmp_path / name)
    write_deltalake(store.below("credits").uri, ROWS, partition_by=["day"])
    assert store.names() == ["credits"]
    assert store.below("credits").is_table()
    assert store.below("credits").delta().to_pyarrow_table().num_rows == 2
    assert (tmp_path / name / "credits" / "_delta_log").is_dir()
    with pytest.raises(TableError, match="a percent sign in a folder's name"):
        Store.of(None, tmp_path / "50%41")
    with pytest.raises(TableError, match="a backslash in a folder's name"):
        Store.of(None, tmp_path / "a\\b")


def test_a_local_folder_has_one_name_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"{tmp_path}/a b/", "./a b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b"]
    assert {Store.of(None, name).uri for name in names} == {f"{tmp_path}/a b"}
    assert Store.of(None, "a").spark_uri == f"file://{tmp_path}/a"
    assert Store.of(None, "a").below("t").uri == f"{tmp_path}/a/t"


def test_a_place_without_tables_has_none(tmp_path: Path) -> None:
    store = Store.of(None, tmp_path / "absent")
    assert store.names() == []
    assert not store.below("credits").is_table()
    with pytest.raises(TableError, match=f"there is no table in {tmp_path}/absent/credits"):
        store.below("credits").delta()


@pytest.mark.parametrize("root", ["gs://bucket/x", "https://host/x", "file://otherhost/x"])
def test_a_place_that_is_not_supported_is_refused_by_name(root: str) -> None:
    with pytest.raises(TableError, match="tables cannot be in"):
        Store.of(None, root)


def test_hdfs_keeps_its_address() -> None:
    assert Store.of(None, "hdfs://nn:8020/tables/").uri == "hdfs://nn:8020/tables"
    assert Store.of(None, "hdfs://nn:8020/tables/").spark_uri == "hdfs://nn:8020/tables"


# -- S3: names and credentials


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_every_name_of_s3_is_one_store(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CONDITIONAL_PUT", raising=False)
    store = Store.of(None, f"{scheme}://tables/root/")
    assert (store.uri, store.spark_uri) == ("s3://tables/root", "s3a://tables/root")


def test_settings_of_the_bucket_come_before_general_ones_and_these_before_the_environment() -> None:
    hadoop = {
        "fs.s3a.endpoint": "store.example:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": "general",
        "fs.s3a.secret.key": "general-secret",
        "fs.s3a.bucket.tables.access.key": "own",
        "fs.s3a.bucket.tables.secret.key": "own-secret",
        "fs.s3a.endpoint.region": "eu-central-1",
    }
    environment = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "envs", "AWS_REGION": "us-west-2"}
    assert s3_options("tables", hadoop.get, environment) == {
        "AWS_ACCESS_KEY_ID": "own",
        "AWS_SECRET_ACCESS_KEY": "own-secret",
        "AWS_ENDPOINT_URL": "http://store.example:9000",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-central-1",
    }
    assert s3_options("others", hadoop.get, environment)["AWS_SECRET_ACCESS_KEY"] == "general-secret"
    assert s3_options("tables", no_setting, environment) == {**environment}


def test_a_key_never_goes_with_the_secret_or_token_of_another_place() -> None:
    hadoop = {"fs.s3a.access.key": "hadoop", "fs.s3a.secret.key": "hadoop-secret"}
    environment = {
        "AWS_ACCESS_KEY_ID": "env",
        "AWS_SECRET_ACCESS_KEY": "env-secret",
        "AWS_SESSION_TOKEN": "env-token",
    }
    found = s3_options("tables", hadoop.get, environment)
    assert found["AWS_SECRET_ACCESS_KEY"] == "hadoop-secret"
    assert "AWS_SESSION_TOKEN" not in found
    assert s3_options("tables", no_setting, environment)["AWS_SESSION_TOKEN"] == "env-token"


def test_an_anonymous_reader_signs_nothing() -> None:
    provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    found = s3_options("tables", {"fs.s3a.aws.credentials.provider": provider}.get, {})
    assert found["AWS_SKIP_SIGNATURE"] == "true"


@pytest.mark.parametrize("name", ["AWS_CONDITIONAL_PUT", "aws_conditional_put", "CONDITIONAL_PUT"])
def test_an_environment_that_switches_conditional_writes_off_is_refused(name: str) -> None:
    with pytest.raises(TableError, match="could overwrite each other's commits: remove it"):
        s3_options("tables", no_setting, {name: "disabled"})
    s3_options("tables", no_setting, {name: "etag"})


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(TableError, match="has credentials in it") as refused:
        Store.of(None, f"s3://{KEY}:planted-secret@tables/root")
    assert KEY not in str(refused.value)
    assert "planted-secret" not in str(refused.value)


def test_no_credential_is_in_a_representation_or_an_error() -> None:
    closed = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0", "AWS_ALLOW_HTTP": "true"}
    held = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": "planted-token"}
    store = Store("s3://tables/root", {**held, **closed, "AWS_REGION": "us-east-1"})
    texts = [repr(store), str(store), f"{store.below('x')}"]
    for call in (store.delta, store.names, store.is_table, store.check_commits):
        with pytest.raises(TableError, match="tables in s3://tables/root") as failed:
            call()
        assert failed.value.__cause__ is None
        assert failed.value.__suppress_context__
        assert not {"\n", "\x1b"} & set(str(failed.value))
        texts += [str(failed.value), repr(failed.value)]
    assert not [text for text in texts for secret in held.values() if secret in text]
    # A store that repeats a credential in its answer.
    assert KEY not in store.without_secrets(f"<Error><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>")
    assert pickle.loads(pickle.dumps(store)).options == store.options


EXPIRED = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(400)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def expired() -> Iterator[Store]:
    """A store that repeats an expired token in its answers, as AWS does."""
    body = (
        f"<Error><Code>ExpiredToken</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId>"
        "<Token-0>planted-token</Token-0></Error>"
    )
    program = [sys.executable, "-c", f"BODY = {body.encode()!r}\n{EXPIRED}"]
    # A process of its own: delta-rs holds the interpreter's lock while it waits for an answer.
    server = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}"}
        held = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": "planted-token",
        }
        yield Store("s3://tables/root", s3_options("tables", no_setting, {**held, **endpoint}))
    finally:
        server.kill()
        server.wait()


def test_no_credential_is_in_an_error_of_a_task_a_lease_or_the_metrics(
    expired: Store, caplog: pytest.LogCaptureFixture
) -> None:
    files, batch = MetricsFiles(expired), pa.RecordBatch.from_pydict({"n": [1]})
    texts = []
    for call in (
        lambda: list(write_task(Target(expired), [batch])),
        lambda: Leases(run_files(expired)).holder("earnings"),
        lambda: files.write("earnings/credits/0.json", "{}"),
        lambda: Replays("s3://tables/root", expired).run(Selection(0)),
    ):
        with pytest.raises(TableError, match="ExpiredToken") as failed:
            call()
        texts.append(str(failed.value))
    metrics = MetricsLog(files, MetricsTable(expired.uri, expired.options))
    metrics._waiting["earnings", "credits", 0] = BatchRecord("earnings", "credits", "id", 0, 1.0, 1.0)
    metrics.flush(everything=True)
    reason = flow_failed("earnings", "credits", OSError(f"key {KEY}"), expired.without_secrets)
    texts += [caplog.text, str(reason)]
    assert "ExpiredToken" in caplog.text
    assert not [text for text in texts for secret in (KEY, "planted-token") if secret in text]


# -- S3: a server


def test_a_table_on_s3_is_found_read_and_listed(s3: S3) -> None:
    store = s3_store(s3)
    held = dict(store.options)
    write_deltalake(store.below("credits").uri, ROWS, partition_by=["day"], storage_options=held)
    assert store.names() == ["credits"]
    assert store.below("credits").is_table()
    assert store.below("credits").delta().to_pyarrow_table().num_rows == 2
    assert not store.below("absent").is_table()
    with pytest.raises(TableError, match="there is no table in s3://tables/root/absent"):
        store.below("absent").delta()


def test_the_environment_alone_is_enough(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store = Store.of(None, "s3a://tables/environment")
    write_deltalake(store.below("credits").uri, ROWS, storage_options=dict(store.options))
    assert Store.of(None, "s3://tables/environment").names() == ["credits"]


def test_a_store_with_conditional_writes_passes_and_keeps_no_trace(s3: S3) -> None:
    store = s3_store(s3, "checked")
    store.check_commits()
    assert store.names() == []


def test_a_store_without_conditional_writes_is_refused() -> None:
    with s3_server(ignores_conditions=True) as server:
        store = s3_store(server)
        with pytest.raises(TableError, match="has no conditional writes"):
            store.check_commits()
        assert store.names() == []
        assert not DeltaTable.is_deltatable(store.uri, storage_options=dict(store.options))
