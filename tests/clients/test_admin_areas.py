"""The areas of the admin client are imported when they are first used, and nothing else shows it."""

from __future__ import annotations

import inspect
import subprocess
import sys

from tidelog.clients import admin
from tidelog.clients.admin import Admin, AsyncAdmin, topics

PROGRAM = """
import sys
from tidelog import Admin

def areas():
    names = ["acls", "cluster", "configs", "group_offsets", "groups", "other_groups"]
    names += ["topics", "transactions", "users"]
    return [name for name in names if f"tidelog.clients.admin.{name}" in sys.modules]

with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=100) as admin:
    print(areas())
    try:
        admin.list_transactions()
    except TimeoutError:
        print(areas())
"""


def test_only_what_is_used_is_imported() -> None:
    """Tools start in a fraction of a second because of it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "['transactions']"], done.stderr


def test_every_name_of_the_package_is_there() -> None:
    names = [name for name in dir(admin) if name[0].isupper() and name != "TYPE_CHECKING"]
    assert len(names) > 55
    for name in names:
        assert inspect.isclass(getattr(admin, name)), name


def test_a_call_is_a_method_of_the_class_with_the_words_of_its_area() -> None:
    assert AsyncAdmin.describe_topics is topics.describe_topics
    assert Admin.describe_topics.__doc__ == topics.describe_topics.__doc__
    assert Admin.describe_topics is Admin.describe_topics

    class Counting(AsyncAdmin):
        async def create_topics(self, *args: object, **kwargs: object) -> str:  # type: ignore[override]
            return "mine"

    assert Counting.create_topics is not AsyncAdmin.create_topics
    assert Counting.delete_topics is topics.delete_topics
