"""The simulated disk, under the name that the tests of storage use."""

from tidelog.simulation.disk import Crash, Inode, SimulatedDisk, SimulatedFile

__all__ = ["Crash", "Inode", "SimulatedDisk", "SimulatedFile"]
