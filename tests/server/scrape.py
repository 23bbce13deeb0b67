"""The broker's metrics as Prometheus would read them."""

from __future__ import annotations

import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker import Broker
from tests.support.wait import eventually


class Metrics:
    """One reading: `metrics("kafka_log_log_size", topic="t")` is the sum of the samples with these labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.samples = [
            # The parser calls every counter `_total`, also those that are not called so.
            (sample.name if sample.name in self.types else sample.name.removesuffix("_total"), labels, value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for labels, value in [(sample.labels, sample.value)]
        ]
        self.names = {name for name, _, _ in self.samples}

    def __call__(self, name: str, **labels: str) -> float:
        found = self.all(name, **labels)
        assert found, f"{name}{labels} is not there"
        return sum(found)

    def all(self, name: str, **labels: str) -> list[float]:
        return [
            value
            for found, given, value in self.samples
            if found == name and labels.items() <= given.items() and (labels or "topic" not in given)
        ]


def metrics_url(broker: Broker) -> str:
    # The first screen follows the file that says that the broker is ready.
    found = eventually(
        lambda: re.search(r"metrics at +(http://\S+)", broker.log()),
        "the first screen has the address of metrics",
    )
    return found[1]


def scrape(broker: Broker) -> Metrics:
    with urllib.request.urlopen(metrics_url(broker), timeout=10) as answer:
        return Metrics(answer.read().decode())
