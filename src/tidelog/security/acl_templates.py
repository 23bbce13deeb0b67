"""The operations that producers and consumers need, by type of resource."""

from __future__ import annotations

from typing import Final

from tidelog.security.operations import AclOperation, AclResourceType

PRODUCER_OPERATIONS: Final = {
    AclResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
CONSUMER_OPERATIONS: Final = {
    AclResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    AclResourceType.GROUP: (AclOperation.READ,),
}
