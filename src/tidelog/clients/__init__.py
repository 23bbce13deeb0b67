"""The clients of a broker: producer, consumer, admin, and what they share."""
