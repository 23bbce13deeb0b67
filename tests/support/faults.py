"""Faults of a disk, under the name that the tests of faults use."""

from tidelog.simulation.disk_faults import CHANGES, Fault, Faults

__all__ = ["CHANGES", "Fault", "Faults"]
