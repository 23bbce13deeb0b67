"""Metadata of the cluster: the tree of nodes, their JSON, and the snapshot of the cluster."""
