"""Connections that must do something in time, at no cost while they do."""

from itertools import chain, islice
from typing import Protocol


class Patient(Protocol):
    """Whoever is waited for."""

    def give_up(self) -> None:
        """It took too long."""


class Deadlines:
    """Everyone has the same number of seconds, so whoever came first is the next to be late."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._new: dict[Patient, None] = {}  # since the last tick
        self._since: dict[Patient, float] = {}

    def start(self, who: Patient) -> None:
        """Begin to count, unless it has begun."""
        if who not in self._since:
            self._new[who] = None

    def stop(self, who: Patient) -> None:
        """It is done."""
        self._new.pop(who, None)
        self._since.pop(who, None)

    def first(self, count: int) -> list[Patient]:
        """The next to be late, at most so many."""
        return list(islice(chain(self._since, self._new), max(count, 0)))

    def tick(self, now: float) -> None:
        """Give up on those who are late. Called about every second, which is as exact as it gets.

        Who came since the last tick is counted from this one: all seconds are theirs, and up to one more.
        """
        late = []
        for who, since in self._since.items():
            if now - since <= self._seconds:
                break
            late.append(who)
        self._since.update(dict.fromkeys(self._new, now))
        self._new.clear()
        for who in late:
            del self._since[who]
            who.give_up()
