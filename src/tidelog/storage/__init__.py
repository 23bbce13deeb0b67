"""One partition's log on disk, in Kafka's files: segments, indexes, producer state, recovery, retention."""
