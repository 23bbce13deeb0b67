"""tidelog: a distributed commit log that speaks Kafka's protocol and keeps Kafka's files."""

__version__ = "0.1.0"
