"""Scenes among the generated events: cheaters, and honest users who look almost like cheaters.

For each rule of the detectors there are cheaters that break only this rule, well above its default threshold,
and honest users just below. Scenes are few, so nothing here is vectorised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.spark.pipelines.alerts import (
    IDLE_INVITEES,
    MANY_IN_A_MINUTE,
    MANY_ON_ADDRESS,
    MANY_ON_DEVICE,
    RING,
    SWITCHING,
    ring_name,
)

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
ACTIVE_WITHIN = 2 * HOUR
"""An honest invitee acts before this."""

JsonValue = str | int | bool | None


class SceneEvent(NamedTuple):
    """An event of a scene. Its id is added later."""

    ts: int
    topic: str
    user: str
    device: str
    ip: str
    rest: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Cheaters:
    """The number of cheaters of each kind."""

    device_switchers: int = 0
    invite_farms: int = 0
    address_farms: int = 0
    minute_bursts: int = 0
    rings: int = 0
    idle_farms: int = 0

    @classmethod
    def few(cls, count: int) -> Cheaters:
        return cls(count, count, count, count, count, count)


@dataclass(slots=True)
class Scenes:
    """The scenes of one run: their events, and the cheaters in them."""

    seed: int
    start: int
    span: int
    cheaters: Cheaters
    honest: int
    """The number of scenes of each honest kind."""
    events: list[SceneEvent] = field(default_factory=list)
    caught: dict[str, list[str]] = field(default_factory=dict)
    spared: dict[str, list[str]] = field(default_factory=dict)
    _random: random.Random = field(init=False)
    _tag: str = field(init=False)
    """Other seeds give other users and devices."""
    _address: int = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"scenes {self.seed}")
        self._tag = f"{self._random.randrange(1 << 32):08x}"
        self._address = self._random.randrange(1 << 20)
        wanted = self.cheaters
        for rule, count, scene in (
            (SWITCHING, wanted.device_switchers, self._switcher),
            (MANY_ON_DEVICE, wanted.invite_farms, self._device_farm),
            (MANY_ON_ADDRESS, wanted.address_farms, self._address_farm),
            (MANY_IN_A_MINUTE, wanted.minute_bursts, self._burst),
            (RING, wanted.rings, self._ring),
            (IDLE_INVITEES, wanted.idle_farms, self._idle_farm),
        ):
            self.caught[rule] = [scene() for _ in range(count)]
        for name, honest in (
            ("families", self._family),
            ("shop devices", self._shop_device),
            ("family invitations", self._family_invitations),
            ("offices", self._office),
            ("popular inviters", self._popular_inviter),
            ("chains", self._chain),
        ):
            self.spared[name] = [honest() for _ in range(self.honest)]
        end = self.start + self.span
        self.events = sorted(event for event in self.events if event.ts < end)

    # Cheaters

    def _switcher(self) -> str:
        """One device with many accounts, one after the other."""
        device, accounts = self._device(), [self._user() for _ in range(self._random.randint(5, 9))]
        at = self._begin(HOUR)
        ip = self._ip()
        for turn in range(self._random.randint(10, 25)):
            self._login(at, accounts[turn % len(accounts)], device, ip)
            at += self._random.randint(20, 110) * SECOND
        return device

    def _device_farm(self) -> str:
        device = self._device()
        inviter = self._user()
        begin = self._begin(4 * HOUR)
        for at in self._times(begin, 4 * HOUR, self._random.randint(7, 16), apart=2 * MINUTE):
            self._invite(at, inviter, device=device)
        return device

    def _address_farm(self) -> str:
        ip, inviters = self._ip(), [self._user() for _ in range(4)]
        begin = self._begin(HOUR)
        times = self._times(begin, 50 * MINUTE, self._random.randint(26, 40), apart=20 * SECOND)
        for number, at in enumerate(times):
            self._invite(at, inviters[number % 4], ip=ip)
        return ip

    def _burst(self) -> str:
        inviter = self._user()
        begin = self._begin(HOUR)
        for at in self._times(begin, 45 * SECOND, self._random.randint(11, 20)):
            self._invite(at, inviter)
        return inviter

    def _ring(self) -> str:
        members = [self._user() for _ in range(self._random.randint(2, 5))]
        begin = self._begin(3 * HOUR)
        times = self._times(begin, 3 * HOUR, len(members))
        self._random.shuffle(times)
        for number, at in enumerate(times):
            self._invite(at, members[number], invitee=members[(number + 1) % len(members)])
        return ring_name(members)

    def _idle_farm(self) -> str:
        """Early in the run, since an invitee is idle only some time after the invitation."""
        inviter = self._user()
        begin = self.start + self._random.randrange(max(1, self.span // 4))
        for at in self._times(begin, min(3 * HOUR, self.span // 8), self._random.randint(14, 22)):
            self._invite(at, inviter, active=False)
        return inviter

    # Honest users who look like cheaters

    def _family(self) -> str:
        """Three accounts on one device, switched often."""
        device, accounts, ip = self._device(), [self._user() for _ in range(3)], self._ip()
        at = self._begin(HOUR)
        for _ in range(self._random.randint(6, 9)):
            self._login(at, self._random.choice(accounts), device, ip)
            at += self._random.randint(1, 6) * MINUTE
        return device

    def _shop_device(self) -> str:
        """Many accounts on one device, each used once."""
        device, ip = self._device(), self._ip()
        at = self._begin(HOUR)
        for _ in range(6):
            self._login(at, self._user(), device, ip)
            at += self._random.randint(2, 8) * MINUTE
        return device

    def _family_invitations(self) -> str:
        device, inviter = self._device(), self._user()
        begin = self._begin(2 * HOUR)
        for at in self._times(begin, 2 * HOUR, self._random.randint(3, 4)):
            self._invite(at, inviter, device=device)
        return device

    def _office(self) -> str:
        ip, inviters = self._ip(), [self._user() for _ in range(3)]
        begin = self._begin(HOUR)
        times = self._times(begin, HOUR, self._random.randint(12, 17), apart=20 * SECOND)
        for number, at in enumerate(times):
            self._invite(at, inviters[number % 3], ip=ip)
        return ip

    def _popular_inviter(self) -> str:
        """Many invitees over hours, few at once, some of whom never act."""
        inviter = self._user()
        begin = self._begin(6 * HOUR)
        count = self._random.randint(15, 30)
        times = self._times(begin, 6 * HOUR, count - 4, apart=2 * MINUTE)
        times += [times[0] + number * 10 * SECOND for number in range(1, 5)]
        for number, at in enumerate(sorted(times)):
            self._invite(at, inviter, active=number % 4 != 0)
        return inviter

    def _chain(self) -> str:
        """Each user invites the next, and nobody invites the first."""
        members = [self._user() for _ in range(5)]
        times = self._times(self._begin(3 * HOUR), 3 * HOUR, 4)
        for number, at in enumerate(times):
            self._invite(at, members[number], invitee=members[number + 1])
        return members[0]

    # Parts of scenes

    def _invite(
        self,
        at: int,
        inviter: str,
        *,
        invitee: str | None = None,
        device: str | None = None,
        ip: str | None = None,
        active: bool = True,
    ) -> None:
        invitee, phone, address = invitee or self._user(), self._device(), self._ip()
        rest: dict[str, JsonValue] = {
            "invitee_id": invitee,
            "code": inviter[1:],
            "invitee_device_id": device or phone,
            "invitee_ip": ip or address,
        }
        self._add(at, "ml_invite_log", inviter, f"p{inviter}", "10.255.0.1", rest)
        self._add(
            at + 2 * SECOND,
            "ml_obtain_credit_log",
            inviter,
            f"p{inviter}",
            "10.255.0.1",
            {"amount": 300, "reason": "invite", "ad_id": None},
        )
        if active:
            self._act(at + self._random.randint(MINUTE, ACTIVE_WITHIN), invitee, phone, address)

    def _act(self, at: int, user: str, device: str, ip: str) -> None:
        ad = f"ad{self._random.randint(1, 200)}"
        screen = self._random.randint(500, 9_000)
        self._add(at, "ml_ad_right_slide_log", user, device, ip, {"ad_id": ad, "screen_ms": screen})
        credit: dict[str, JsonValue] = {"amount": 5, "reason": "right_slide", "ad_id": ad}
        self._add(at + SECOND, "ml_obtain_credit_log", user, device, ip, credit)

    def _login(self, at: int, user: str, device: str, ip: str) -> None:
        self._add(at, "ml_user_login_log", user, device, ip, {"method": "password"})

    def _add(self, ts: int, topic: str, user: str, device: str, ip: str, rest: dict[str, JsonValue]) -> None:
        self.events.append(SceneEvent(ts, topic, user, device, ip, rest))

    def _begin(self, length: int) -> int:
        """The begin of a scene, so that all of it happens within the run if the run is long enough."""
        return self.start + self._random.randrange(max(1, self.span - min(length, self.span // 2)))

    def _times(self, begin: int, length: int, count: int, apart: int = 0) -> list[int]:
        """Times within the length, in order, and at least `apart` from each other if there is room."""
        step = min(length, self.start + self.span - begin) / count
        gap = min(apart, step)
        return [begin + int(step * n + self._random.random() * (step - gap)) for n in range(count)]

    def _user(self) -> str:
        return f"s{self._tag}-{self._next()}"

    def _device(self) -> str:
        return f"e{self._tag}-{self._next()}"

    def _ip(self) -> str:
        number = self._address + self._next()
        return f"172.{16 + (number >> 16) % 16}.{number >> 8 & 255}.{number & 255}"

    def _next(self) -> int:
        self._count += 1
        return self._count
