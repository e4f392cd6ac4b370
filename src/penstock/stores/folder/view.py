"""A process's view of one queue in the folder: an index of its messages, kept up to date by listings and time.

The index may be a second old, so it decides nothing: a message belongs to the process that has renamed its file
into its private folder, and the attributes that it finds there are true.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from penstock.contract.settings import Settings
from penstock.engine.unowned import UnownedQueue
from penstock.stores.folder import layout, steps
from penstock.stores.folder.admission import Admission
from penstock.stores.folder.index import MessageIndex, Row
from penstock.stores.folder.layout import DELAY, DONE, FAILED, FILE_HEADER, QUEUES, REMOVE, is_foreign, is_id
from penstock.stores.folder.shared import STRAYS, FolderWatch, Listing, Shared, names_of
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.steps import Ending, Won
from penstock.stores.folder.tree import home
from penstock.system.clock import at_least_one
from penstock.system.files import refusal

_MINUTE = 60_000  # by which the clocks of hosts may differ
LEASE_EXPIRED = "lease expired"
FOLDER = {"available": QUEUES, "delayed": DELAY, "in_flight": DELAY, "failed": FAILED, "done": DONE}
_STATE = {QUEUES: "available", FAILED: "failed", DONE: "done"}


class QueueView(UnownedQueue):
    """One queue. `lock` guards the index and the line of consumers; files are moved without it."""

    settings: Settings

    def __init__(self, shared: Shared, name: str, file: str, settings: Settings) -> None:
        self.name, self.file = name, file
        self.lock = shared.threads.rlock()
        self.admission = Admission(shared.tree, file, shared.threads)
        self._shared, self._tree, self._clock = shared, shared.tree, shared.clock
        self._rows = MessageIndex(settings.keep_done)
        self._queue_folder = FolderWatch(shared, home(QUEUES, file))
        self._fetched = 0  # messages since the last listing
        self._fetched_before = 0  # messages between the two listings before
        self._refreshed = self._refresh_took = 0.0
        self._has_order = False  # whether new ids come after those of the stored messages
        self._protected_ids: Counter[str] = Counter()  # messages that threads of this process are moving
        self._seen: dict[str, Listing] = {}  # the listings that the index was made from, by folder
        self._stale_before = 0  # listings older than this change may be wrong although the folder is unchanged
        self._must_reload = False  # whether an error has left the index incomplete
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Change the settings, which this process or another has written."""
        with self.lock:
            self.settings = settings
            self._keeps_done = settings.keep_done != 0
            self._rows.keep_done(settings.keep_done)
            self._watches = {QUEUES: self._queue_folder, DELAY: self._shared.delay, FAILED: self._shared.failed}
            if self._keeps_done:
                self._watches[DONE] = self._shared.done
            for uid, row in self._rows.items() if not self._keeps_done else ():
                if row.state == "done":
                    self._forget(uid)

    # The index

    def refresh(self, eager: bool = False, certain: bool = False) -> None:
        """Bring the index up to date with the folders; `eager` and `certain` as in FolderWatch.look."""
        watches = self._watches
        with self.lock, self._reload_on_error(), self._tree.separate_effect():
            started = self._clock.monotonic()
            certain = certain or self._must_reload
            for watch in watches.values():
                watch.look(eager, certain, self._is_stale(watch))
            listings = {folder: watch.listing for folder, watch in watches.items()}
            if all(listing is self._seen.get(folder) for folder, listing in listings.items()):
                return
            self._must_reload = False
            self._fetched_before, self._fetched = self._fetched, 0
            listed: dict[str, Collection[str]] = {
                folder: names_of(listings[folder], self.file) for folder in watches if folder != QUEUES
            }
            listed[QUEUES] = set(filter(is_id, listings[QUEUES].names))
            self._skip_strays(listings)
            for uid, row in self._rows.items():
                folder = FOLDER[row.state]
                elsewhere = uid not in listed[folder] and row.version <= listings[folder].at
                moving = (row.taken and not self._rows.is_postponed(uid)) or uid in self._protected_ids
                if elsewhere and not moving:
                    self._rows.drop(uid)
            ahead = [
                uid
                for folder, ids in listed.items()
                for uid in ids
                if self._rows.get(uid) is None and uid not in self._protected_ids and not self._load(folder, uid)
            ]
            # Files of people come last, because the stored messages set the clock.
            for uid in ahead:
                if not self._load(QUEUES, uid):
                    self._rename(uid)
            for uid in self._adopt(listings[QUEUES].names):
                self._load(QUEUES, uid)
            self._seen = listings
            self.serve()
            self._refreshed = self._clock.monotonic()
            self._refresh_took = self._refreshed - started

    def _learn_of(self, folder: str, groups: Collection[str]) -> None:
        """Look in queues/ or delay/ for messages of these groups that are not known to be there."""
        with self.lock, self._reload_on_error(), self._tree.separate_effect():
            if folder == QUEUES:
                names = self._rows.unsettled_anew(self._tree.names(home(QUEUES, self.file)))
            else:
                names = set(self._tree.ids(DELAY, self.file))
            for uid in filter(is_id, names.difference(self._protected_ids)):
                row = self._rows.get(uid)
                if row is None or (row.group in groups and not row.is_held):
                    self._load(folder, uid)

    def _place(self, folder: str, uid: str) -> str:
        return self._tree.place(folder, self.file, uid)

    def _look_now(self, certain: bool = False) -> int:
        """Refresh the index and end due leases and delays; the time."""
        self.refresh(eager=True, certain=certain)
        return self.advance()

    def _mark_stale(self) -> None:
        """A message was not in its folder: list the folders again, even if their mtimes are the same."""
        self._stale_before = self._shared.change()

    def _is_stale(self, watch: FolderWatch) -> bool:
        return watch.listing.at < self._stale_before

    @contextmanager
    def _reload_on_error(self) -> Iterator[None]:
        """An error in here may leave the index wrong: it is then made anew from the folders."""
        try:
            yield
        except BaseException:
            self._rows, self._must_reload = MessageIndex(self.settings.keep_done), True
            raise

    def _adopt(self, names: Iterable[str]) -> list[str]:
        """Rename files that people put into the queue's folder to new ids, in the order of arrival; those ids."""
        ids, found = [], []
        for name in filter(is_foreign, names):
            path = self._place(QUEUES, name)
            if not self._tree.is_message(path) or (status := self._tree.status(path)) is None:
                continue
            if self._tree.is_ours(path, times=False):
                found.append((status.moved, name))
        for (_, name), uid in zip(sorted(found), self._tree.next_ids(self._clock.now(), len(found)), strict=True):
            path = self._place(QUEUES, name)
            try:
                self._keep_name(path, name, uid)
                if self._tree.move(path, self._place(QUEUES, uid)):
                    ids.append(uid)
            except PermissionError:
                if self._tree.is_ours(path):  # then the folder is write-protected, not the file
                    raise
        return ids

    def _keep_name(self, path: str, name: str, uid: str) -> None:
        """Keep the name of a person's file as the header `file`, where the file can have headers."""
        with suppress(OSError):  # gone, another user's, or the disk is full
            stamp = self._tree.stamp_of(path, uid)
            if self._tree.has_attributes and not stamp.stamped and stamp.headers is None:
                shown = os.fsencode(name).decode(errors="replace")
                self._tree.stamp(path, {"headers": self._tree.keep_value({FILE_HEADER: shown}).encode()})

    def _load(self, folder: str, uid: str) -> bool:
        """Add a message of another process or a person to the index; False: its id is in the future."""
        path = self._place(folder, uid)
        try:
            stamp = self._tree.stamp_of(path, uid)
            # Penstock stamps files only, so what is stamped is a file.
            if not stamp.stamped and not self._tree.is_message(path):
                return True
            # Permissions of a stamped message in the queue are checked when it is fetched.
            if not (stamp.stamped and folder == QUEUES) and not self._tree.is_ours(path, folder != QUEUES):
                return True
            until = self._until(folder, path, stamp)
        except FileNotFoundError:
            return True
        except PermissionError as error:
            self._tree.skip(path, refusal(path, error))
            return True
        if not stamp.stamped and folder == QUEUES and self._is_ahead(stamp):
            return False
        row = self._row(folder, stamp, until)
        if row.state in ("available", "done") and self._rows.due_at(row) <= self._clock.now():
            if row.state == "available":
                self._discard(QUEUES, [uid])
            return True
        if stamp.stamped and stamp.sound:
            self._tree.follow_order(stamp.order)
            self._clock.follow(stamp.received, path)
            if stamp.holder is not None:
                self._clock.follow(stamp.holder.claimed_at, path)
        self._know(uid, row)
        return True

    def _is_ahead(self, stamp: Stamp) -> bool:
        """Whether the id of a file that Penstock has not put is in the future."""
        return stamp.order > max(layout.first_order(self._clock.now() + _MINUTE), self._tree.order)

    def _rename(self, uid: str) -> None:
        """Rename a file whose id is in the future: it arrives now."""
        path = self._place(QUEUES, uid)
        [other] = self._tree.next_ids(self._clock.now(), 1)
        self._tree.skip(path, f"its id is in the future: it is the message {other} from now on")
        try:
            if self._tree.move(path, self._place(QUEUES, other)):
                self._load(QUEUES, other)
        except PermissionError:
            if self._tree.is_ours(path):
                raise

    def _skip_strays(self, listings: dict[str, Listing]) -> None:
        for folder, listing in listings.items():
            for name in names_of(listing, STRAYS) if folder != QUEUES else ():
                self._tree.skip(
                    self._tree.path(f"{folder}/{name}"),
                    "no message, as its name is not QUEUE:ID with a UUID of version 1: for a message move it to "
                    f"{QUEUES}/QUEUE/",
                )

    def _until(self, folder: str, path: str, stamp: Stamp) -> int:
        if folder == QUEUES:
            return 0
        return self._tree.settled_at(path, stamp) if folder == DONE else self._tree.until(path)

    def _row(self, folder: str, stamp: Stamp, until: int) -> Row:
        state = _STATE.get(folder) or ("in_flight" if stamp.is_held else "delayed")
        return Row.of(state, stamp, until)

    def _know(self, uid: str, row: Row) -> None:
        row.version = self._shared.change()
        self._rows.put(uid, row)

    def _forget(self, uid: str) -> None:
        self._shared.change()
        self._rows.drop(uid)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        self._look_now()
        with self.lock:
            return self._rows.counts()

    def _find(self, uid: str, read: Callable[[str], bytes]) -> tuple[str, Stamp, int, bytes] | None:
        with self.lock:
            row = self._rows.get(uid)
        if row is None or not is_id(uid):
            return None
        first = FOLDER[row.state]
        for _ in range(3):  # a process may be moving it
            for folder in dict.fromkeys((first, QUEUES, DELAY, FAILED, DONE)):
                path = self._place(folder, uid)
                try:
                    stamp = self._tree.stamp_of(path, uid)
                    until = self._until(folder, path, stamp)
                    payload = read(path)
                except FileNotFoundError:
                    continue
                except PermissionError as error:
                    self._tree.skip(path, refusal(path, error))
                    return None
                if folder == DONE and not self._keeps_done:
                    return None
                return self._row(folder, stamp, until).state, stamp, until, payload
        return None

    # Time

    def advance(self) -> int:
        """End leases and delays that are over and discard expired messages; the time."""
        now = self._clock.now()
        with self.lock, self._reload_on_error(), self._tree.separate_effect():
            if self._rows.next_due() <= now:
                due = [(uid, row) for uid, row in self._rows.pop_due(now) if uid not in self._protected_ids]
                for folder in (QUEUES, DELAY, FAILED, DONE):
                    expired = [uid for uid, row in due if FOLDER[row.state] == folder and _has_expired(row, now)]
                    self._discard(folder, expired)
                rest = [(uid, row) for uid, row in due if not _has_expired(row, now)]
                for uid, row in rest:
                    if row.state == "done":
                        self._forget(uid)
                self._end_waiting([uid for uid, row in rest if row.state in ("delayed", "in_flight")], now)
            self.serve()
        return now

    def bring_back(self) -> int:
        """Refresh and advance; how many leases and delays were over."""
        self.refresh(eager=True)
        now = self._clock.now()
        with self.lock:
            rows = [row for _, row in self._rows.items() if row.state in ("delayed", "in_flight")]
            due = sum(row.until <= now for row in rows)
        self.advance()
        return due

    def _discard(self, folder: str, ids: Sequence[str]) -> None:
        if ids:
            with self._tree.separate_effect():
                removed = steps.remove(self._tree, self.file, folder, ids)
                for uid in ids:
                    self._forget(uid)
                if removed:
                    self._tree.sync(REMOVE, home(folder, self.file))
                    self._tree.date_removed(self.file, removed, self._clock.now())

    def _end_waiting(self, ids: Sequence[str], now: int) -> None:
        """Move messages on whose time in delay/ is over."""
        endings = []
        for uid in ids:
            won = self._win_due(uid, now)
            if won is None:
                continue
            if won.stamp.is_held:
                ending = self._ending(
                    won, won.until, "failed", LEASE_EXPIRED, self._retry_at(won, won.until, None)
                )
                ending.settled = False
                endings.append(ending)
            else:
                endings.append(Ending(won, won.until, "", None, won.until))
        delayed = [ending for ending in endings if not ending.outcome]
        for ending in delayed:
            ending.won.stamp.holder = None  # a delay is no attempt
        for ending in steps.end(self._tree, self.file, endings):
            self._came_back(ending)

    def _win_due(self, uid: str, now: int) -> Won | None:
        """Take a message whose time in delay/ is over; None if it is gone, or its lease was extended."""
        path = self._place(DELAY, uid)
        try:
            until = self._tree.until(path)
            stamp = self._tree.stamp_of(path, uid)
            held = None
            if until <= now:
                held = self._tree.take(DELAY, self.file, uid, until, stamp.is_held)
            if held is None:
                stamp = self._tree.stamp_of(path, uid)
                self._know(uid, self._row(DELAY, stamp, until))
                return None
        except FileNotFoundError:  # another process moves it on, or its consumer settles it
            self._forget(uid)
            self._mark_stale()
            return None
        won = Won(uid, held, self._tree.stamp_of(held, uid), self._tree.until(held))
        if won.until > now or won.stamp.is_held != stamp.is_held:
            self._tree.put_back(held, DELAY, self.file, uid)
            self._know(uid, self._row(DELAY, won.stamp, won.until))
            return None
        return won

    def _retry_at(self, won: Won, now: int, delay: float | None) -> int:
        """When a message that failed comes back, after a delay or by the queue's backoff."""
        attempts = won.stamp.holder.attempts if won.stamp.holder else 0
        delay = self.settings.backoff_of(attempts) if delay is None else delay
        return now + at_least_one(delay) if delay else now

    def _ending(self, won: Won, at: int, outcome: str, reason: str | None, visible_at: int) -> Ending:
        ending = Ending(won, at, outcome, reason, visible_at)
        attempts = won.stamp.holder.attempts if won.stamp.holder else 0
        if outcome == "failed" and self.settings.max_attempts and attempts >= self.settings.max_attempts:
            ending.target = FAILED
        elif visible_at > self._clock.now():
            ending.target = DELAY
        return ending

    def _came_back(self, ending: Ending) -> None:
        until = ending.at if ending.target == FAILED else ending.visible_at
        row = self._row(ending.target, ending.won.stamp, until)
        if ending.target == DELAY:
            row.state = "delayed"
        self._know(ending.won.uid, row)

    def serve(self) -> None:
        """Give available messages to waiting consumers; see waiting.py."""

    # Messages that this process moves

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Move messages without the lock: a listing that is made meanwhile is stale."""
        started = self._shared.change()
        try:
            yield
        finally:
            if any(watch.listing.at >= started for watch in self._watches.values()):
                self._mark_stale()

    @contextmanager
    def _protected(self, uids: Iterable[str]) -> Iterator[None]:
        """Keep listings and time from changing the rows of messages that this thread moves."""
        held = list(uids)
        with self.lock:
            self._protected_ids.update(held)
        try:
            yield
        finally:
            with self.lock:
                self._protected_ids.subtract(held)
                self._protected_ids += Counter()  # drops the ids whose count is 0
                for uid in held:
                    row = self._rows.get(uid)
                    if row is not None and uid not in self._protected_ids:
                        self._rows.put(uid, row)  # pop_due may have dropped its due time meanwhile


def _has_expired(row: Row, now: int) -> bool:
    return row.expires_at is not None and row.expires_at <= now
