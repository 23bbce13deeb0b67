"""Connections to controllers instead of brokers (bootstrap.controllers): learns the quorum and its leader."""

from __future__ import annotations

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.metadata import BrokerNode, ClusterView
from tidelog.errors import MismatchedEndpointType, UnsupportedEndpointType, UnsupportedVersion, error_class
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

CONTROLLERS = 2
FIRST_VERSION_WITH_ENDPOINTS = 1


async def learn_controllers(connection: AsyncConnection, view: ClusterView) -> None:
    """Update the view from a controller's description of its quorum. Raises, with advice, for a broker."""
    address = connection.node.address
    advice = "name controllers of a KRaft cluster in bootstrap.controllers, brokers in bootstrap.servers"
    if (
        not connection.serves(DescribeClusterRequest)
        or connection.version_for(DescribeClusterRequest) < FIRST_VERSION_WITH_ENDPOINTS
    ):
        raise UnsupportedVersion(f"{address} knows of no controllers to speak with: {advice}")
    answer = await connection.call(DescribeClusterRequest(endpoint_type=CONTROLLERS), DescribeClusterResponse)
    kind = error_class(answer.error_code) if answer.error_code else None
    if kind in (MismatchedEndpointType, UnsupportedEndpointType):
        raise MismatchedEndpointType(f"{address} is no controller: {advice}")
    if kind is not None:
        raise kind(answer.error_message or f"the controllers of {address}: {kind()}")
    nodes = [BrokerNode(node.broker_id, node.host, node.port, node.rack) for node in answer.brokers]
    view.take_nodes(nodes, answer.controller_id, answer.cluster_id)
