"""Real threads that take turns: which one runs, and until when, is decided by a seeded random and nothing else.

Exactly one actor runs at any time, the one with the baton. The thread that makes a scheduler is its first actor
and has the baton from the start; every other is a function that was given to `start`. The baton may change hands

- before each operation of a disk that takes part (`join_disk`),
- when a scheduler's lock is taken: sometimes if it is free, for certain if it is not,
- while an actor waits for the end of another,
- when an actor ends,

and nowhere else. So a plain `threading.Lock` must not be held across any of these; a watchdog tells if one is.

Once the machine is off, whoever gets the baton gets SimulatedCrash with it: all come to their end, and nobody has
an answer that nobody could have seen.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from random import Random

from penstock.system.clock import SimulatedClock, milliseconds
from penstock.system.threads import Lock
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

_PATIENCE = 60.0  # seconds without a change of hands after which somebody must be blocked outside the scheduler
_PREEMPTION = 0.25  # how often the taking of a free lock lets others go first


class Deadlock(Exception):
    """Nobody can go on; says who waits for what."""


class Actor:
    """A thread that takes part; what `start` returns."""

    def __init__(self, scheduler: "Scheduler", name: str) -> None:
        self.name = name
        self.thread = threading.current_thread()
        self.ended = False
        self.baton = threading.Lock()  # released by who gives it, taken by who waits for it
        self.baton.acquire()
        self.ready: Callable[[], bool] | None = None  # whether it can go on, while it waits for something
        self.waits_for: object = None
        self._scheduler = scheduler

    def join(self) -> None:
        """Wait until it has ended."""
        self._scheduler.wait(lambda: self.ended, f"the end of {self.name}")


class ScheduledLock:
    """A lock for actors. Threads that are none may use it as long as it is free when they come."""

    def __init__(self, scheduler: "Scheduler", name: str, reentrant: bool) -> None:
        self.name = name
        self.holder: Actor | threading.Thread | None = None
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._depth = 0

    def acquire(self) -> bool:
        me = self._scheduler.current()
        if not (self._reentrant and self.holder is me):
            self._scheduler.queue_for(self)
            self.holder = me
        self._depth += 1
        return True

    def release(self) -> None:
        if self.holder is None or (self._reentrant and self.holder is not self._scheduler.current()):
            raise RuntimeError(f"{self.name} is released by one who does not hold it")
        self._depth -= 1
        if not self._depth:
            self.holder = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __str__(self) -> str:
        return f"{self.name}, which {self.holder.name if self.holder else 'nobody'} has"


class ScheduledClock(SimulatedClock):
    """A clock on which actors can wait while others let time pass."""

    def __init__(self, scheduler: "Scheduler", now: int = 1_700_000_000_000) -> None:
        super().__init__(now)
        self.scheduler = scheduler

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not isinstance(self.scheduler.current(), Actor):
            return super().wait(event, seconds)
        deadline = self._elapsed + milliseconds(seconds)
        self.scheduler.wait(lambda: event.is_set() or self._elapsed >= deadline, f"{seconds} seconds to pass")
        return event.is_set()


class Scheduler:
    """The `Threads` of a simulation."""

    def __init__(self, random: Random) -> None:
        self.trace: list[tuple[str, str, str]] = []  # who did which operation where
        self.observe: Callable[[], object] | None = (
            None  # called before each operation, when nothing else can come
        )
        self._random = random
        self._first = self._running = Actor(self, "main")
        self._actors = [self._first]  # those that have not ended
        self._threads: list[threading.Thread] = []
        self._disks: list[SimulatedDisk] = []
        self._error: BaseException | None = None  # the first that is no crash
        self._changes = 0  # of hands
        self._locks = 0

    def lock(self) -> Lock:
        """A lock that any actor may release."""
        return self._make_lock(reentrant=False)

    def rlock(self) -> Lock:
        """A lock that its holder may take again."""
        return self._make_lock(reentrant=True)

    def start(self, name: str, run: Callable[[], None]) -> Actor:
        """Make an actor; it runs once it gets the baton."""
        self.stop_if_off()
        actor = Actor(self, name)
        actor.thread = threading.Thread(target=self._live, args=(actor, run), name=name, daemon=True)
        self._actors.append(actor)
        self._threads.append(actor.thread)
        actor.thread.start()
        return actor

    def join_disk(self, disk: SimulatedDisk) -> None:
        """Let the baton change hands before the operations of this disk."""
        self._disks.append(disk)
        disk.before_operation = self._before_operation

    def run(self, script: Callable[[], object] | None = None) -> None:
        """Play the script here, beside all others, and let them come to their end too.

        Then raises what went wrong first, SimulatedCrash only if nothing else did.
        """
        me = self._first
        try:
            if script is not None:
                script()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self._fail(error)
        me.ready, me.waits_for = self._alone, "the end of all"
        self._hand_over(me)
        me.ready = None
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._error is not None:
            raise self._error
        self.stop_if_off()

    def pause(self) -> None:
        """Let others go first, maybe."""
        me = self.current()
        if isinstance(me, Actor):
            self._hand_over(me)
            self.stop_if_off()

    def wait(self, ready: Callable[[], bool], what: object) -> None:
        """Let others run until they have made it ready."""
        me = self.current()
        if ready():
            return
        if not isinstance(me, Actor):
            raise RuntimeError(f"{me.name} is no actor, so it cannot wait for {what}")
        me.ready, me.waits_for = ready, what
        self._hand_over(me)
        me.ready = None
        self.stop_if_off()

    def queue_for(self, lock: ScheduledLock) -> None:
        """Return when the lock is free."""
        if lock.holder is None:
            self.stop_if_off()
            if len(self._actors) > 1 and self._random.random() < _PREEMPTION:
                self.pause()
        self.wait(lambda: lock.holder is None, lock)

    def current(self) -> Actor | threading.Thread:
        """Who calls: the actor that has the baton, or a thread that is none."""
        thread = threading.current_thread()
        return self._running if thread is self._running.thread else thread

    def stop_if_off(self) -> None:
        """Raise SimulatedCrash if actors have to come to their end."""
        if self._is_off():
            raise SimulatedCrash("the machine is off")

    def _is_off(self) -> bool:
        return self._error is not None or any(disk.off for disk in self._disks)

    def _alone(self) -> bool:
        return len(self._actors) == 1

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def _make_lock(self, reentrant: bool) -> ScheduledLock:
        self._locks += 1
        maker = sys._getframe(2)
        place = f"{maker.f_code.co_filename.rpartition('/')[2]}:{maker.f_lineno}"
        return ScheduledLock(self, f"lock {self._locks} of {place}", reentrant)

    def _before_operation(self, name: str, path: str) -> None:
        me = self.current()
        if isinstance(me, Actor):
            self._hand_over(me)
            self.stop_if_off()
            self.trace.append((me.name, name, path))
            if self.observe is not None:
                self.observe()

    def _live(self, actor: Actor, run: Callable[[], None]) -> None:
        self._receive(actor)
        try:
            self.stop_if_off()
            run()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self._fail(error)
        actor.ended = True
        self._actors.remove(actor)
        self._give(self._choose())

    def _hand_over(self, me: Actor) -> None:
        """Choose who goes on; returns when it is the caller's turn again."""
        if me.ready is None and self._alone():
            return
        chosen = self._choose()
        if chosen is not me:
            self._give(chosen)
            self._receive(me)

    def _choose(self) -> Actor:
        able = [actor for actor in self._actors if self._can_go_on(actor)]
        if not able:
            waits = [f"{actor.name} waits for {actor.waits_for}" for actor in self._actors]
            self._fail(Deadlock("nobody can go on: " + ", ".join(waits)))
            return self._choose()  # all of them can now come to their end
        return able[0] if len(able) == 1 else self._random.choice(able)

    def _can_go_on(self, actor: Actor) -> bool:
        if actor.ready is None or actor.ready():
            return True
        return self._is_off() and actor.ready != self._alone

    def _give(self, chosen: Actor) -> None:
        self._changes += 1
        self._running = chosen
        chosen.baton.release()

    def _receive(self, me: Actor) -> None:
        changes = self._changes
        while not me.baton.acquire(timeout=_PATIENCE):
            if me is self._first and changes == self._changes:
                frame = sys._current_frames().get(self._running.thread.ident or 0)
                stack = "".join(traceback.format_stack(frame)) if frame else ""
                raise RuntimeError(f"{self._running.name} is blocked by something that is no actor's:\n{stack}")
            changes = self._changes
