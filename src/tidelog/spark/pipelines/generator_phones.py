"""Valid phone numbers of many countries.

A number is a prefix that is in use with any digits after it, so no tables of numbering plans are needed.
"""

from __future__ import annotations

from typing import NamedTuple


class Country(NamedTuple):
    region: str
    code: str
    trunk: str
    """The digits that are dialled before the number within the country."""
    prefixes: tuple[str, ...]
    digits: int
    """The number of digits after the prefix."""
    share: float
    """The share of users who live there."""


COUNTRIES = (
    Country("CN", "86", "", ("135", "138", "139", "150", "158", "182", "187"), 8, 0.40),
    Country("IN", "91", "0", ("98", "99", "97"), 8, 0.15),
    Country("US", "1", "", ("212555", "415555", "650253", "312867", "713226"), 4, 0.12),
    Country("BR", "55", "", ("11987", "21996", "31985", "11974"), 6, 0.08),
    Country("ID", "62", "0", ("8123", "8133", "8213"), 7, 0.07),
    Country("DE", "49", "0", ("1511", "1512", "1514", "1520", "1570", "1761"), 7, 0.05),
    Country("JP", "81", "0", ("9012", "8012"), 6, 0.04),
    Country("NG", "234", "0", ("803", "806", "813"), 7, 0.04),
    Country("FR", "33", "0", ("61", "62", "66"), 7, 0.03),
    Country("GB", "44", "0", ("74001", "75002", "77001", "79001"), 5, 0.02),
)


def country_of(user: int) -> Country:
    """The country of a user, always the same one."""
    place = scatter(user, 10_000) / 10_000
    for country in COUNTRIES:
        place -= country.share
        if place < 0:
            return country
    return COUNTRIES[0]


def national_number(user: int, country: Country) -> str:
    prefix = country.prefixes[user % len(country.prefixes)]
    return f"{prefix}{scatter(user + 7, 10**country.digits):0{country.digits}d}"


def scatter(number: int, size: int) -> int:
    """A pseudo-random number below `size`, the same for the same number."""
    mixed = number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 29) % size
