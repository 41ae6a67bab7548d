"""A fault: what happens, to whom, and when; all drawn from one seed."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

SUBJECTS: Mapping[str, int] = {"sim": 88, "ranks": 8, "inductor": 4}
"""What is searched, with the share of the faults in percent: compiling with Inductor takes long."""
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGHUP")
ALL, WORKERS, COMPILED = ("sim", "ranks", "inductor"), ("sim", "inductor"), ("inductor",)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: whom it may hit, and which subjects have them."""

    whom: tuple[str, ...]
    subjects: tuple[str, ...] = ALL
    weight: int = 2


KINDS: Mapping[str, Kind] = {
    **{name: Kind(("search", "worker", "rank", "keeper"), weight=6) for name in SIGNALS},
    "disk full": Kind(("disk",), weight=4),
    "temporary disk full": Kind(("disk",), weight=4),
    "no compiler": Kind(("machine",), COMPILED, weight=12),
    "later load": Kind(("machine",), weight=4),
    "disk read-only": Kind(("disk",)),
    "disk slow": Kind(("disk",)),
    "storage stalls": Kind(("disk",)),
    "database locked": Kind(("database",)),
    "database truncated": Kind(("database",), weight=4),
    "database overwritten": Kind(("database",), weight=4),
    "database deleted": Kind(("database",)),
    "older schema": Kind(("database",), weight=1),
    "few file descriptors": Kind(("search",)),
    "little memory": Kind(("search",), WORKERS),
    "few processes": Kind(("search",)),
    "clock set back": Kind(("machine",)),
    "clock set forward": Kind(("machine",)),
    "garbage in the cache": Kind(("cache",), COMPILED, weight=12),
    "cache deleted": Kind(("cache",), COMPILED, weight=12),
    "cache poisoned": Kind(("cache",), COMPILED, weight=12),
    "two searches": Kind(("search",)),
    "hang": Kind(("model",), weight=1),
    "segfault": Kind(("model",)),
    "bit in outputs": Kind(("model",), ("ranks", "inductor")),
    "bit in state": Kind(("model",), ("ranks", "inductor")),
    "child stays": Kind(("model",)),
}
"""All kinds, with how often each is drawn."""
OF_MACHINE = frozenset(
    {"disk full", "temporary disk full", "disk read-only", "no compiler", "few file descriptors", "few processes"}
)
"""Kinds after which no trial may be stored as a failure: the machine's is never a plan's."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of ``KINDS``.
        whom: what it hits.
        subject: what is searched.
        moment: when, as a share of the time that an undisturbed search takes.
        seed: of all else that is drawn.
    """

    kind: str
    whom: str
    subject: str
    moment: float
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def drawn(self) -> random.Random:
        """Return the source of all else."""
        return random.Random(self.seed)


def draw(seed: int, only: str | None = None, subject: str | None = None) -> Iterator[Fault]:
    """Yield faults without end; ``only`` those of one kind or on one subject."""
    source = random.Random(seed)
    while True:
        searched = subject or source.choices(list(SUBJECTS), list(SUBJECTS.values()))[0]
        possible = {name: kind for name, kind in KINDS.items() if searched in kind.subjects}
        name = source.choices(list(possible), [kind.weight for kind in possible.values()])[0]
        absent = {"sim": "rank", "inductor": "rank", "ranks": "worker"}[searched]
        whom = source.choice([each for each in possible[name].whom if each != absent])
        fault = Fault(name, whom, searched, source.random(), source.randrange(2**32))
        if only in (None, name):
            yield fault
