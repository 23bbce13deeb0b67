"""Metadata of the cluster: the tree of nodes, the JSON in them, and the snapshot made of it."""
