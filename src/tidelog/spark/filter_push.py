"""Filters that Spark pushes to a source, taken only if the source's option `pushFilters` says so.

Spark plans the tasks of a frame once, and would use the tasks of one filtered query for the next query on
that frame, whatever its filters are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql.datasource import DataSourceReader, Filter


class FilterPush:
    """`reader.pushFilters` as an object that Spark takes for the base class's method.

    Spark refuses readers that override the method while filter pushdown is off. It compares `__func__`, so
    with the function of the base class it accepts this object in either case. Spark also evaluates every
    filter itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[list[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._take(filters)
        return filters
