"""The client's side of SASL.

A mechanism is a generator: it yields the bytes to send and receives the broker's answers, so tests need no
socket.
"""
