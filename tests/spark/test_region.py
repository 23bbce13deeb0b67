"""The region of a user from the phone number, as the data of phonenumbers has it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.app_events import App
from tests.spark.hands import Hands
from tidelog.spark.pipelines import runner
from tidelog.spark.pipelines.region import Place, place_of, places
from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("phone", "country", "place"),
    [
        ("+8613912345678", None, Place("CN", "Changzhou, Jiangsu", "mobile", None)),
        ("139 1234 5678", "CN", Place("CN", "Changzhou, Jiangsu", "mobile", None)),
        ("+14155552671", "CN", Place("US", "San Francisco, CA", "fixed_line_or_mobile", None)),
        ("+390612345678", None, Place("IT", "Rome", "fixed_line", None)),
        ("+80012345678", None, Place(None, None, "toll_free", "+800 belongs to no country")),
        ("13912345678", None, Place(None, None, None, "no country code, and no country is named")),
        ("13912345678", " ", Place(None, None, None, "no country code, and no country is named")),
        ("13912345678", "zz", Place(None, None, None, "no country code, and 'ZZ' is not a country")),
        ("13912345678", "cn", Place("CN", "Changzhou, Jiangsu", "mobile", None)),
        ("+999123456", None, Place(None, None, None, "unknown country code")),
        ("+1415555", None, Place(None, None, None, "the number is too short")),
        ("+141555526711", None, Place(None, None, None, "the number is too long")),
        ("+10005552671", None, Place(None, None, None, "the number is not in use in +1")),
        ("call me", "US", Place(None, None, None, "not a phone number")),
        ("", "US", Place(None, None, None, "not a phone number")),
        ("+86" + "1" * 300, None, Place(None, None, None, "too long for a phone number")),
    ],
)
def test_the_place_of_a_number(phone: str, country: str | None, place: Place) -> None:
    assert place_of(phone, country) == place


def test_places_by_prefix_are_those_of_the_whole_number() -> None:
    phonenumbers = pytest.importorskip("phonenumbers")
    from phonenumbers import geocoder

    draw = random.Random(4)
    codes = ("+861{}", "+1{}", "+44{}", "+49{}", "+39{}", "+81{}", "+5511{}", "+91{}", "+3906{}")
    found = 0
    for _ in range(1500):
        phone = draw.choice(codes).format("".join(draw.choice("0123456789") for _ in range(9)))
        number = phonenumbers.parse(phone)
        if phonenumbers.is_valid_number(number) and phonenumbers.region_code_for_number(number) != "001":
            found += 1
            assert place_of(phone, None).region == (geocoder.description_for_number(number, "en") or None)
    assert found > 200


def test_many_numbers_at_once() -> None:
    pandas = pytest.importorskip("pandas")
    phones = pandas.Series(["+442079460018", "x", "02079460018", "+442079460018"])
    found = places(phones, pandas.Series([None, None, "GB", None]), "en")
    assert found["country"].tolist() == ["GB", None, "GB", "GB"]
    assert found["reason"].tolist() == [None, "not a phone number", None, None]


def test_users_get_the_region_of_their_newest_number(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    app = App(hands.bootstrap, random.randrange(1 << 32), users=20)
    print(f"seed {app.seed}")
    app.make_topics()
    for _ in range(2):
        app.send(300)
        runner.run(
            "region",
            bootstrap=hands.bootstrap,
            data=str(tmp_path),
            trigger="available-now",
            spark=spark,
        )
    table = Tables(spark, str(tmp_path / "tables")).read("user_regions")
    rows = table.select("user_id", "country", "number_type").collect()
    assert sorted(tuple("" if part is None else part for part in row) for row in rows) == sorted(
        app.regions()
    )
    assert table.where("country is null and reason is null").count() == 0
    assert "+86" not in "".join(hands.values("ml_user_regions")), "numbers are not handed on"
