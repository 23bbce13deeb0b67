from tests.support.fixtures import bootstrap, new_name, own_broker
from tests.support.needs import _has_what_is_needed

__all__ = ["_has_what_is_needed", "bootstrap", "new_name", "own_broker"]
