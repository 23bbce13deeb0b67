"""The socket server of a broker: its loop, listeners, channels, requests and their limits and metrics."""
