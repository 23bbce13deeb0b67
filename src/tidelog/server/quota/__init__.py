"""Client quotas: the limits of clients, the measurement of their use, and their throttle times."""
