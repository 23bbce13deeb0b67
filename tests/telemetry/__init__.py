"""Metrics that clients push to the broker."""
