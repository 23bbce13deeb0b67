"""Marker: what the control batch that ends a transaction in a partition says."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """`transaction_version` is of the transaction; the batch does not have it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
