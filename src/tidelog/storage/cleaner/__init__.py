"""Compaction: of each key of a log the last record stays, by passes that run beside the broker's loop."""
