"""The Spark source and sink at Apache Kafka 4.3 over SASL_SSL, with a store that Spark distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.test_client_stores import JKS, PASSWORD, SECRET, STORES, Secured, kafka
from tests.spark.conftest import spark
from tidelog import Admin
from tidelog.clients.admin import NewTopic
from tidelog.security.jaas import SCRAM_MODULE

__all__ = ["kafka", "spark"]

TOPIC = "spark-secured"


@pytest.mark.parametrize("kafka", ["kafka4"], indirect=True)
def test_rows_go_through_a_secured_cluster(kafka: Secured, spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.addFile(str(STORES / "trust.p12"))
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{kafka.login_port}",
        "bootstrapTimeoutMs": "60000",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="alice" password="{SECRET}";',
        "kafka.ssl.truststore.location": "trust.p12",
        "kafka.ssl.truststore.password": PASSWORD,
        "kafka.ssl.truststore.type": "PKCS12",
    }
    with Admin(**kafka.login("SCRAM-SHA-512"), **JKS) as admin:
        admin.create_topics([NewTopic(TOPIC, 2)])
    rows = spark.range(20).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    for exactly_once in ("false", "true"):
        rows.write.format("tidelog").options(**options, topic=TOPIC, exactlyOnce=exactly_once).mode(
            "append"
        ).save()
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
    query.awaitTermination(120)
    assert spark.table("secured").count() == 40
    wrong = {**options, "kafka.ssl.truststore.password": "a wrong one"}
    with pytest.raises(Exception, match=r"ssl\.truststore\.password=\[hidden\]") as caught:
        spark.read.format("tidelog").options(**wrong, subscribe=TOPIC).load().collect()
    assert "a wrong one" not in str(caught.value)
