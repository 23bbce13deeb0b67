"""The socket server of a broker: loop, listeners, channels and requests, with their limits and metrics."""
