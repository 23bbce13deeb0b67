"""Marker: the contents of the control batch that ends a transaction in a partition."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """`transaction_version` is the version of the transaction. It is not in the batch."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
