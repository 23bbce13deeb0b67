"""The types of keys and values that producers and consumers are generic in.

The defaults apply without a serializer or deserializer. Only type checkers know them: `TypeVar` has defaults
since Python 3.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K_contra = TypeVar("K_contra", contravariant=True, default=bytes | str)
    V_contra = TypeVar("V_contra", contravariant=True, default=bytes | str)
    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
    RecordKey = TypeVar("RecordKey", default=Any)
    RecordValue = TypeVar("RecordValue", default=Any)
else:
    from typing import TypeVar

    K_contra = TypeVar("K_contra", contravariant=True)
    V_contra = TypeVar("V_contra", contravariant=True)
    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)
    RecordKey = TypeVar("RecordKey")
    RecordValue = TypeVar("RecordValue")
