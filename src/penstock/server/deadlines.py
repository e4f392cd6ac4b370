"""Connections that must do something in time, at no cost while they do."""

from typing import Protocol


class Patient(Protocol):
    """Whoever is waited for."""

    def give_up(self) -> None:
        """It took too long."""


class Deadlines:
    """Everyone has the same number of seconds, so whoever came first is the next to be late."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[Patient, float] = {}
        self._now = 0.0

    def start(self, who: Patient) -> None:
        """Begin to count, unless it has begun."""
        self._since.setdefault(who, self._now)

    def stop(self, who: Patient) -> None:
        """It is done."""
        self._since.pop(who, None)

    def tick(self, now: float) -> None:
        """Give up on those who are late. Called about every second, which is as exact as it gets."""
        self._now = now
        late = []
        for who, since in self._since.items():
            if now - since <= self._seconds:
                break
            late.append(who)
        for who in late:
            del self._since[who]
            who.give_up()
