"""The region of a user, from the last verified phone number. The number itself is not kept.

Numbers are parsed with the data of the package `phonenumbers`. An invalid number has a null country and a
reason. The state has one row for each user, the newest verification by event time, so a late event that is
older changes nothing. An event from the future would stay the newest one: it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    Setting,
    SettingValue,
    Source,
    Step,
    Table,
    Topic,
)
from tidelog.spark.pipelines.event_times import AHEAD, in_time
from tidelog.spark.pipelines.events import VERIFICATIONS

if TYPE_CHECKING:
    import pandas
    from phonenumbers import PhoneNumber
    from pyspark.sql import Column, DataFrame

RESULT = "country string, region string, number_type string, reason string"
LANGUAGES = ("en", "ar", "de", "el", "es", "fr", "hu", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv", "zh")
TYPES = (
    "fixed_line",
    "mobile",
    "fixed_line_or_mobile",
    "toll_free",
    "premium_rate",
    "shared_cost",
    "voip",
    "personal_number",
    "pager",
    "uan",
    "voicemail",
)
CACHED_PREFIXES = 100_000


class Place(NamedTuple):
    """The place of a number. A null country comes with the reason."""

    country: str | None
    region: str | None
    number_type: str | None
    reason: str | None


def place_of(phone: str, country: str | None, language: str = "en") -> Place:
    """The place of a number. `country` applies to a number without a country code."""
    import phonenumbers

    named = country.strip().upper() if country else None
    try:
        number = phonenumbers.parse(phone, named or None)
    except phonenumbers.NumberParseException as error:
        return _none(_parse_reason(error, phone, named))
    if not phonenumbers.is_valid_number(number):
        return _none(_invalid_reason(number))
    found = phonenumbers.region_code_for_number(number)
    kind = phonenumbers.number_type(number)
    type_name = TYPES[kind] if 0 <= kind < len(TYPES) else "unknown"
    if found is None or found == "001":
        return Place(None, None, type_name, f"+{number.country_code} belongs to no country")
    digits = phonenumbers.national_significant_number(number)
    return Place(found, _description(number.country_code or 0, digits, language) or None, type_name, None)


def _none(reason: str) -> Place:
    return Place(None, None, None, reason)


def _parse_reason(error: Exception, phone: str, country: str | None) -> str:
    from phonenumbers import NumberParseException

    kind = getattr(error, "error_type", None)
    if kind == NumberParseException.INVALID_COUNTRY_CODE:
        if "+" in phone:
            return "unknown country code"
        # The text of an event has any length: show no more of it than a country name may have.
        wrong = f"{country[:20]!r} is not a country" if country else "no country is named"
        return f"no country code, and {wrong}"
    if kind == NumberParseException.TOO_LONG:
        return "too long for a phone number"
    if kind in (NumberParseException.TOO_SHORT_NSN, NumberParseException.TOO_SHORT_AFTER_IDD):
        return "too short for a phone number"
    return "not a phone number"


def _invalid_reason(number: PhoneNumber) -> str:
    import phonenumbers

    possible = phonenumbers.is_possible_number_with_reason(number)
    words = {
        phonenumbers.ValidationResult.TOO_SHORT: "too short",
        phonenumbers.ValidationResult.TOO_LONG: "too long",
        phonenumbers.ValidationResult.INVALID_LENGTH: "of the wrong length",
        phonenumbers.ValidationResult.INVALID_COUNTRY_CODE: "of an unknown country code",
        phonenumbers.ValidationResult.IS_POSSIBLE_LOCAL_ONLY: "without its area code",
    }
    return f"the number is {words.get(possible, f'not in use in +{number.country_code}')}"


def _description(code: int, digits: str, language: str) -> str:
    """The place of a geographical number, cached for all numbers with the same prefix."""
    from phonenumbers.geodata import GEOCODE_LONGEST_PREFIX

    prefix = f"{code}{digits}"[:GEOCODE_LONGEST_PREFIX]
    return _place_of_prefix(code, prefix, language, len(digits))


@lru_cache(maxsize=CACHED_PREFIXES)
def _place_of_prefix(code: int, prefix: str, language: str, length: int) -> str:
    import phonenumbers
    from phonenumbers import geocoder

    national = prefix.removeprefix(str(code)).ljust(length, "0")
    zeros = len(national) - len(national.lstrip("0"))
    number = phonenumbers.PhoneNumber(
        country_code=code,
        national_number=int(national),
        italian_leading_zero=zeros > 0 or None,
        number_of_leading_zeros=zeros if zeros > 1 else None,
    )
    found: str = geocoder.description_for_valid_number(number, language)
    return found


def places(phones: pandas.Series, countries: pandas.Series, language: str) -> pandas.DataFrame:
    """The places of many numbers. Each different number is parsed once."""
    import pandas

    pairs = list(zip(phones, countries, strict=True))
    known = {pair: place_of(*pair, language) for pair in dict.fromkeys(pairs)}
    return pandas.DataFrame([known[pair] for pair in pairs], columns=list(Place._fields), dtype="object")


def lookup(language: str) -> Callable[[Column, Column], Column]:
    """`places` as a function on Spark's columns."""
    import pandas
    from pyspark.sql.pandas.functions import pandas_udf

    def look_up(phones: pandas.Series, countries: pandas.Series) -> pandas.DataFrame:
        return places(phones, countries.where(countries.notna(), None), language)

    # Spark reads the kind of a function from its annotations, which must be types, not strings.
    look_up.__annotations__ = {
        "phones": pandas.Series,
        "countries": pandas.Series,
        "return": pandas.DataFrame,
    }
    # PySpark's stubs have no function of several columns that returns a struct.
    found: Callable[[Column, Column], Column] = pandas_udf(look_up, returnType=RESULT)  # type: ignore[call-overload]
    return found


def sound(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as f

    rows = rows.where(VERIFICATIONS.spark_error().isNull() & in_time(context))
    return rows.where(f.col("ok")) if context.switch("verified_only") else rows


def newest(rows: DataFrame, context: Context) -> DataFrame:
    """The newest verification of each user. At the same time the greater id wins."""
    from pyspark.sql import functions as f

    last = f.max(f.struct("ts", "event_id", "phone", "country")).alias("last")
    return rows.groupBy("user_id").agg(last)


def located(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as f

    default = context.text("default_country").upper()
    country = f.coalesce(f.nullif(f.col("last.country"), f.lit("")), f.lit(default or None).cast("string"))
    look_up = lookup(context.text("language"))
    rows = rows.withColumn("place", look_up(f.col("last.phone"), country))
    return rows.select(
        "user_id",
        "place.country",
        "place.region",
        "place.number_type",
        "place.reason",
        f.timestamp_millis("last.ts").alias("updated_at"),
    )


STEPS: tuple[Step, ...] = (sound, newest, located)


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    return (
        Flow(
            "verifications",
            Source((VERIFICATIONS.topic,), VERIFICATIONS.spark_schema(), metadata=("timestamp",)),
            steps=STEPS,
            sinks=(
                Table("user_regions", keys=("user_id",)),
                Topic("ml_user_regions", key="user_id", compacted=True),
            ),
            output_mode="update",
        ),
    )


def _country(value: SettingValue) -> bool:
    import phonenumbers

    return value == "" or str(value).upper() in phonenumbers.SUPPORTED_REGIONS


PIPELINE = Pipeline(
    name="region",
    title="The region of each user, from the phone number that was verified last.",
    doc="""\
Takes the newest verification of every user and finds the country, the region (state, province or city, if the
number shows it) and the type of the number. An invalid number has a null country and a reason. The table
user_regions and the compacted topic ml_user_regions have one row per user, without the phone number.""",
    flows=flows,
    settings=(
        Setting("verified_only", True, "Count only numbers whose code was entered correctly."),
        Setting(
            "default_country",
            "",
            "The country of numbers without a country code, if the event does not name one.",
            _country,
            "the two letters of a country such as CN, or nothing",
        ),
        Setting(
            "language",
            "en",
            "The language of regions' names.",
            lambda value: value in LANGUAGES,
            f"one of {', '.join(LANGUAGES)}",
        ),
        AHEAD,
    ),
)
