from tests.support.fixtures import bootstrap, new_name

__all__ = ["bootstrap", "new_name"]
