"""The forms of `--output` beside JSON: YAML, a table and CSV, all of the same values.

A table and a CSV file have a row for each object of a list; a list of objects within each object (the
partitions of a topic) makes a row for each of these, with the outer fields before its own. What is still
nested is JSON in its cell.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from io import StringIO

from tidelog.cli.terminal import visible

Row = dict[str, object]

# Words of YAML 1.1 and 1.2 that a plain string would be read as.
NOT_PLAIN = re.compile(r"(?i)(?:null|true|false|yes|no|on|off|y|n)")
PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.+:@-]*")


def write_form(value: object, form: str) -> str:
    """A value of JSON as text, with the newline at its end."""
    if form == "yaml":
        return "\n".join(yaml_lines(value)) + "\n"
    rows = rows_of(value)
    return csv_text(rows) if form == "csv" else table_text(rows)


# Rows


def rows_of(value: object) -> list[Row]:
    """The rows of a value: of each object in a list, or of the value itself."""
    items = value if isinstance(value, list) else [value]
    inner = common_list(items)
    found: list[Row] = []
    for item in items:
        if not isinstance(item, Mapping):
            found.append({"value": item})
            continue
        outer = {str(name): each for name, each in item.items() if name != inner}
        nested = item.get(inner) if inner is not None else None
        if inner is None or not isinstance(nested, list) or not nested:
            found.append(outer)
            continue
        for each in nested:
            clash = {f"{inner}.{name}" if name in outer else str(name): each[name] for name in each}
            found.append(outer | clash)
    return found


def common_list(items: Iterable[object]) -> str | None:
    """The one field of the objects that is a list of objects; None if there is none, or more than one."""
    names: set[str] = set()
    for item in items:
        if isinstance(item, Mapping):
            names |= {
                str(name)
                for name, each in item.items()
                if isinstance(each, list) and each and all(isinstance(one, Mapping) for one in each)
            }
    return names.pop() if len(names) == 1 else None


def columns_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and not any(isinstance(each, list | dict) for each in value):
        return ",".join(cell(each) for each in value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def csv_text(rows: list[Row]) -> str:
    out = StringIO()
    columns = columns_of(rows)
    if columns:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def table_text(rows: list[Row]) -> str:
    """Columns as wide as their longest cell; numbers are aligned to the right."""
    columns = columns_of(rows)
    if not columns:
        return ""
    cells = [[visible(cell(row.get(name))) for name in columns] for row in rows]
    titles = [visible(name).upper() for name in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    right = [
        all(
            isinstance(row.get(name), int | float | None) and not isinstance(row.get(name), bool)
            for row in rows
        )
        for name in columns
    ]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (titles, *cells)
    ]
    return "\n".join(lines) + "\n"


# YAML


def yaml_lines(value: object, depth: int = 0) -> list[str]:
    """Block style, two spaces a level; strings are plain where no reader of YAML takes them for another."""
    pad = "  " * depth
    if isinstance(value, Mapping) and value:
        lines: list[str] = []
        for name, each in value.items():
            if isinstance(each, Mapping | list) and each:
                lines.append(f"{pad}{scalar(str(name))}:")
                lines += yaml_lines(each, depth + (0 if isinstance(each, list) else 1))
            else:
                lines.append(f"{pad}{scalar(str(name))}: {scalar(each)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for each in value:
            if isinstance(each, Mapping | list) and each:
                first, *rest = yaml_lines(each, depth + 1)
                lines += [f"{pad}- {first.removeprefix(pad + '  ')}", *rest]
            else:
                lines.append(f"{pad}- {scalar(each)}")
        return lines
    return [pad + scalar(value)]


def scalar(value: object) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and not NOT_PLAIN.fullmatch(value):
        return value if not value.endswith(":") else f'"{value}"'
    if isinstance(value, str):
        # JSON writes a character beyond 16 bits as two, which YAML does not put together again.
        parts = (json.dumps(c)[1:-1] if c <= "\uffff" else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(parts)}"'
    return json.dumps(value)
