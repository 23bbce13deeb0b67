"""Compaction: keeps the last record of each key of a log, in passes that run off the loop."""
