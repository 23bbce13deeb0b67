"""Clients of a broker: what our own tools speak with."""
