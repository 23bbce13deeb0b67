"""Whole brokers, ZooKeeper and clients in one process, on simulated time, network and disks.

A seed determines every latency, every fault and the order in which processes run, so it replays a run.
"""
