"""The source and the sink over SASL_SSL, with a store of keytool that Spark distributed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.data.key_stores.record import PASSWORD
from tests.support.secured_broker import SECRET, STORES, client_file, secured_broker
from tidelog import Admin
from tidelog.clients.admin import NewTopic
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "secured"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = secured_broker()
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic(TOPIC, 2)])
    yield broker
    broker.close()


def test_rows_go_through_a_secured_broker(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.addFile(str(STORES / "trust.p12"))
    client = client_file("SCRAM-SHA-512") | {"ssl.truststore.location": "trust.p12"}
    options = {f"kafka.{name}": value for name, value in client.items()}
    options |= {"kafka.bootstrap.servers": broker.address_of("LOGIN"), "bootstrapTimeoutMs": "60000"}
    rows = spark.range(20).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    for exactly_once in ("false", "true"):
        writer = rows.write.format("tidelog").options(**options, topic=TOPIC, exactlyOnce=exactly_once)
        writer.mode("append").save()
    read = spark.read.format("tidelog").options(**options, subscribe=TOPIC).load()
    assert sorted(int(row.value) for row in read.collect()) == sorted([*range(20), *range(20)])
    plan = read._jdf.queryExecution().toString()  # type: ignore[operator]
    assert SECRET not in plan
    assert PASSWORD not in plan
    query = (
        spark.readStream.format("tidelog")
        .options(**options, subscribe=TOPIC, startingOffsets="earliest")
        .load()
        .writeStream.format("memory")
        .queryName("secured")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("secured").count() == 40
    wrong = {**options, "kafka.ssl.truststore.password": "a wrong one"}
    with pytest.raises(Exception, match=r"ssl\.truststore\.password=\[hidden\]") as caught:
        spark.read.format("tidelog").options(**wrong, subscribe=TOPIC).load().collect()
    assert "a wrong one" not in str(caught.value)
