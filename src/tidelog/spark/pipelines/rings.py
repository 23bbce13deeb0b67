"""Rings among invitations: users who invite each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tidelog.spark.pipelines.alerts import Finding, Seen, evidence, ring_name
from tidelog.spark.pipelines.days import DAY_MS

Edges = dict[str, dict[str, Seen]]
"""By inviter and invitee: the first invitation between the two."""

LONGEST_RING = 20
"""The number of paths grows with every step: longer rings are not worth the search."""
MOST_RINGS = 1_000
"""A crowd in which all invite all has a huge number of rings: stop after this many of one day."""


def rings(seen: list[Seen], longest: int, within_ms: int, day: int) -> list[Finding]:
    """Rings of two to `longest` users, closed within `within_ms`, with their first invitation on the day."""
    edges: Edges = {}
    for invitation in seen:
        if invitation.who != invitation.other:
            edges.setdefault(invitation.other, {}).setdefault(invitation.who, invitation)
    found = []
    for members in circles(pruned(edges), longest):
        invitations = sorted(
            edges[inviter][invitee]
            for inviter, invitee in zip(members, [*members[1:], members[0]], strict=True)
        )
        first, last = invitations[0].ts, invitations[-1].ts
        if 0 <= first - day < DAY_MS and last - first <= within_ms:
            name = ring_name(members)
            facts = evidence(invitations, members=name.split(">"), length=len(members))
            found.append(Finding(name, first, last, facts))
    return found


def pruned(edges: Edges) -> Edges:
    """The edges without users who invite nobody or were not invited, repeatedly: that removes most users."""
    while True:
        invited = {invitee for invitees in edges.values() for invitee in invitees}
        smaller = {
            inviter: {invitee: edge for invitee, edge in invitees.items() if invitee in edges}
            for inviter, invitees in edges.items()
            if inviter in invited
        }
        smaller = {inviter: invitees for inviter, invitees in smaller.items() if invitees}
        if smaller == edges:
            return edges
        edges = smaller


def circles(edges: Edges, longest: int) -> list[list[str]]:
    """Each circle once, starting with its smallest name."""

    def walks(path: list[str]) -> Iterator[list[str]]:
        for following in edges.get(path[-1], ()):
            if following == path[0]:
                yield path
            elif following > path[0] and len(path) < longest and following not in path:
                yield from walks([*path, following])

    every = (circle for first in sorted(edges) for circle in walks([first]))
    return list(islice(every, MOST_RINGS))
