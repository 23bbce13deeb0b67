"""A ZooKeeper in memory, with faults by seed, and client sessions on it."""

from tidelog.metadata.simulated.server import SimulatedZooKeeper
from tidelog.metadata.simulated.tree import SimulatedTree

__all__ = ["SimulatedTree", "SimulatedZooKeeper"]
