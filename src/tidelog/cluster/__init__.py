"""Partitions of this broker, the operations that wait on them, and what is known of the cluster."""
