"""Metrics that clients push to the broker (KIP-714): subscriptions, client instances, OTLP."""
