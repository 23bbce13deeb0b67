"""The normal traffic of the app in columns: many users and events of every kind, each with its JSON.

Advertisements are shown, some are swiped, and most swipes earn credit. Tasks advance step by step and pay at
the end. Users invite others, who take part from then on. Values are joined from columns, not made one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.pipelines.generator_phones import country_of, national_number, scatter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ADS = 200
APPS = 60
INVITE_CREDIT = 300
SHARES = {
    "right": 0.15,
    "left": 0.09,
    "install": 0.015,
    "login": 0.04,
    "verify": 0.012,
    "task": 0.03,
    "invite": 0.006,
    "adjust": 0.002,
}
"""The share of each kind among all events. Credits follow from the others; exposures are the rest."""
CREDITED = 0.9  # of the swipes
METHODS = ("password", "code", "token")
CHANNELS = ("store", "lock-screen", "web")


@dataclass(slots=True)
class Rows:
    """Events of one topic: their users by number, when they happened, and the JSON after the envelope."""

    topic: str
    users: Ints
    ts: Ints
    rest: list[pa.Array | str]


class World:
    """Users with their devices, addresses and numbers, and their progress in tasks."""

    def __init__(self, users: int, devices: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self.users = users
        numbers = range(users)
        names = [f"u{number}" for number in numbers]
        self.names = pa.array(names)
        self._devices = pa.array([f"d{number % devices}" for number in numbers])
        self._addresses = pa.array([_address(number % devices) for number in numbers])
        self._who = pc.binary_join_element_wise(
            '"user_id":"', self.names, '","device_id":"', self._devices, '","ip":"', self._addresses, '"', ""
        )
        self._joined = min(users, max(2, users // 2))
        """Users below this number take part; the others take part once they are invited."""
        self._tasks = np.zeros(users, dtype=np.int64)
        self._attempts = np.zeros(users, dtype=np.int64)

    def business(self, count: int, begin: int, end: int) -> list[Rows]:
        """`count` events between two times. An event that follows from another happens after it."""
        rng = self._rng
        counts = {name: int(count * share + rng.random()) for name, share in SHARES.items()}
        counts["invite"] = min(counts["invite"], self.users - self._joined)
        tasks, done = self._progress(counts["task"], begin, end)
        swiped = counts["left"] + counts["right"]
        credited = int(swiped * CREDITED)
        follow = credited + counts["invite"] + len(done.users)
        exposures = count - sum(counts.values()) - follow
        if exposures < swiped:  # too few events for one to follow from another
            return [self._exposures(self._draw(count), self._times(count, begin, end))]
        users, times = self._draw(exposures), self._times(exposures, begin, end)
        chosen = rng.permutation(exposures)[:swiped]
        ads = rng.integers(1, ADS + 1, exposures)
        who, screen = users[chosen], rng.integers(300, 15_000, swiped)
        at, ad = np.minimum(times[chosen] + screen, end - 1), ads[chosen]
        left = np.arange(swiped) < counts["left"]
        found = [self._exposures(users, times, ads)]
        found += self._swipes(who, at, ad, screen, left)
        paid = rng.permutation(swiped)[:credited]
        amounts = np.where(left[paid], rng.integers(10, 40, credited), rng.integers(2, 9, credited))
        reasons = np.where(left[paid], "left_slide", "right_slide")
        invites, invited = self._invites(counts["invite"], begin, end)
        found += [tasks, invites, self._logins(counts["login"], begin, end)]
        found += [self._verifications(counts["verify"], begin, end)]
        found += [self._installs(counts["install"], who[left], at[left], ad[left], begin, end)]
        found += [
            _credits(who[paid], _after(at[paid], 500, end), amounts, reasons, ad[paid]),
            _credits(done.users, _after(done.ts, 1_000, end), 100 + done.users % 5 * 100, "task"),
            _credits(invited.users, _after(invited.ts, 2_000, end), INVITE_CREDIT, "invite"),
            self._adjustments(counts["adjust"], begin, end),
        ]
        return [rows for rows in found if len(rows.ts)]

    def values(self, rows: Rows, ids: pa.Array, prefix: str) -> pa.Array:
        """The JSON of events: the envelope, then their own fields."""
        return pc.binary_join_element_wise(
            f'{{"event_id":"{prefix}',
            ids,
            '","version":1,"ts":',
            pa.array(rows.ts).cast(pa.string()),
            ",",
            self._who.take(pa.array(rows.users)),
            *rows.rest,
            "}",
            "",
        )

    def keys(self, rows: Rows) -> pa.Array:
        return self.names.take(pa.array(rows.users))

    def _draw(self, count: int) -> Ints:
        """Random users; some are drawn more often than others."""
        part = self._rng.random(count)
        return (part ** np.float64(1.5) * self._joined).astype(np.int64)

    def _times(self, count: int, begin: int, end: int) -> Ints:
        return np.sort(self._rng.integers(begin, end, count))

    def _exposures(self, users: Ints, ts: Ints, ads: Ints | None = None) -> Rows:
        if ads is None:
            ads = self._rng.integers(1, ADS + 1, len(ts))
        slots = self._rng.integers(0, 6, len(ts))
        rest = [',"ad_id":"ad', _text(ads), '","slot":', _text(slots)]
        return Rows("ml_ad_exposure_log", users, ts, rest)

    def _swipes(self, who: Ints, at: Ints, ad: Ints, screen: Ints, left: NDArray[np.bool_]) -> list[Rows]:
        found = []
        for topic, side in (("ml_ad_left_slide_log", left), ("ml_ad_right_slide_log", ~left)):
            rest = [',"ad_id":"ad', _text(ad[side]), '","screen_ms":', _text(screen[side])]
            found.append(Rows(topic, who[side], at[side], rest))
        return found

    def _progress(self, count: int, begin: int, end: int) -> tuple[Rows, Rows]:
        """Steps of tasks, in order for each user; and the steps that completed a task."""
        users, times = self._draw(count), self._times(count, begin, end)
        done = self._tasks[users] + _occurrence(users)
        np.add.at(self._tasks, users, 1)
        steps = 3 + users % 5
        step = done % steps + 1
        rest = [',"task_id":"task', _text(done // steps), '","step":', _text(step), ',"steps":', _text(steps)]
        last = step == steps
        return Rows("ml_task_log", users, times, rest), Rows("", users[last], times[last], [])

    def _invites(self, count: int, begin: int, end: int) -> tuple[Rows, Rows]:
        """The next users join, each invited by an earlier one: a tree, so there are no rings."""
        times = self._times(count, begin, end)
        inviters = (self._rng.random(count) * self._joined).astype(np.int64)
        new = pa.array(np.arange(self._joined, self._joined + count))
        self._joined += count
        rest = [
            *(',"invitee_id":"', self.names.take(new), '","code":"', _text(inviters)),
            *('","invitee_device_id":"', self._devices.take(new)),
            *('","invitee_ip":"', self._addresses.take(new), '"'),
        ]
        return Rows("ml_invite_log", inviters, times, rest), Rows("", inviters, times, [])

    def _logins(self, count: int, begin: int, end: int) -> Rows:
        method = pa.array(METHODS).take(pa.array(self._rng.integers(0, len(METHODS), count)))
        users, times = self._draw(count), self._times(count, begin, end)
        return Rows("ml_user_login_log", users, times, [',"method":"', method, '"'])

    def _verifications(self, count: int, begin: int, end: int) -> Rows:
        users, times = self._draw(count), self._times(count, begin, end)
        attempts = self._attempts[users] + _occurrence(users) + 1
        np.add.at(self._attempts, users, 1)
        right = self._rng.random(count) < 0.85
        dialled = self._rng.random(count) < 0.1
        phones = pa.array([_phone(int(user), bool(way)) for user, way in zip(users, dialled, strict=True)])
        ok = pa.array(["true" if good else "false" for good in right], pa.string())
        rest = [*(',"ok":', ok, ',"attempt":', _text(attempts)), phones.cast(pa.string())]
        return Rows("ml_message_verify_log", users, times, rest)

    def _installs(self, count: int, who: Ints, at: Ints, ad: Ints, begin: int, end: int) -> Rows:
        """Half of them follow from a left swipe."""
        rng = self._rng
        led = rng.permutation(len(who))[: count // 2]
        others = count - len(led)
        users = np.concatenate([who[led], self._draw(others)])
        times = np.concatenate([_after(at[led], 30_000, end), self._times(others, begin, end)])
        ads = pc.binary_join_element_wise('"ad', _text(ad[led]), '"', "")
        from_ad = pa.concat_arrays([ads, pa.array(["null"] * others, pa.string())])
        channel = pa.array(CHANNELS).take(pa.array(rng.integers(0, len(CHANNELS), count)))
        apps = _text(rng.integers(1, APPS + 1, count))
        rest = [',"app_id":"app', apps, '","ad_id":', from_ad, ',"channel":"', channel, '"']
        return Rows("ml_app_install_log", users, times, rest)

    def _adjustments(self, count: int, begin: int, end: int) -> Rows:
        amounts = self._rng.integers(-50, 51, count)
        return _credits(self._draw(count), self._times(count, begin, end), amounts, "adjust")


def _credits(
    users: Ints, ts: Ints, amounts: Ints | int, reasons: NDArray[np.str_] | str, ads: Ints | None = None
) -> Rows:
    reason = reasons if isinstance(reasons, str) else pa.array(reasons)
    amount = str(amounts) if isinstance(amounts, int) else _text(amounts)
    rest: list[pa.Array | str] = [',"amount":', amount, ',"reason":"', reason, '","ad_id":']
    rest += ["null"] if ads is None else ['"ad', _text(ads), '"']
    return Rows("ml_obtain_credit_log", users, ts, rest)


def _after(ts: Ints, delay: int, end: int) -> Ints:
    return np.minimum(ts + delay, end - 1)


def _text(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _occurrence(users: Ints) -> Ints:
    """For each position, how often its user occurs before it."""
    order = np.argsort(users, kind="stable")
    ordered = users[order]
    first = np.searchsorted(ordered, ordered, side="left")
    found = np.empty(len(users), dtype=np.int64)
    found[order] = np.arange(len(users)) - first
    return found


def _address(number: int) -> str:
    place = scatter(number, 1 << 22) << 2 | number & 3
    return f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}"


def _phone(user: int, dialled: bool) -> str:
    country = country_of(user)
    number = national_number(user, country)
    if dialled:
        return f',"phone":"{country.trunk}{number}","country":"{country.region}"'
    return f',"phone":"+{country.code}{number}","country":null'
