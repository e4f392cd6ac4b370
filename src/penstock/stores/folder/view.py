"""What a process knows of a queue, what time brings about there, and which consumer is served.

What it knows may be a second old. So nothing is decided by it alone: a message belongs to the process that renames
its file, and the content found then counts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock.contract.settings import Settings
from penstock.engine.unowned import UnownedQueue
from penstock.stores.folder import layout, steps
from penstock.stores.folder.admission import Admission
from penstock.stores.folder.index import MessageIndex, Row
from penstock.stores.folder.layout import DELAY, DONE, FAILED, QUEUES, REMOVE, is_foreign, is_id
from penstock.stores.folder.shared import STRAYS, Listing, Shared, Watch, names_of
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.steps import Ending, Won
from penstock.stores.folder.tree import home
from penstock.system.files import refusal

_MINUTE = 60_000  # by which the clocks of hosts may differ
LEASE_EXPIRED = "lease expired"
FOLDER = {"available": QUEUES, "delayed": DELAY, "in_flight": DELAY, "failed": FAILED, "done": DONE}
_STATE = {QUEUES: "available", FAILED: "failed", DONE: "done"}


class QueueView(UnownedQueue):
    """One queue. `lock` guards what is known and who waits; files move without it."""

    settings: Settings

    def __init__(self, shared: Shared, name: str, file: str, settings: Settings) -> None:
        self.name, self.file = name, file
        self.lock = shared.threads.rlock()
        self.admission = Admission(shared.tree, file, shared.threads)
        self._shared, self._tree, self._clock = shared, shared.tree, shared.clock
        self._rows = MessageIndex(settings.keep_done)
        self._own = Watch(self._tree.disk, self._tree.path(home(QUEUES, file)), self._clock, shared.changes)
        self._fetched = 0  # since the last listing
        self._fetched_before = 0  # between the two listings before
        self._refreshed = self._refresh_took = 0.0
        self._has_order = False
        self._hands: Counter[str] = Counter()
        self._seen: dict[str, Listing] = {}  # what is known is of these; other queues may have had folders listed
        self._doubted = 0  # as of which change something may not be where it is thought to be
        self._distrusted = False  # whether nothing is known for sure
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on, which this process or another has written."""
        with self.lock:
            self.settings = settings
            self._keeps_done = settings.keep_done != 0
            self._rows.keep_done(settings.keep_done)
            self._watches = {QUEUES: self._own, DELAY: self._shared.delay, FAILED: self._shared.failed}
            if self._keeps_done:
                self._watches[DONE] = self._shared.done
            for uid, row in self._rows.items() if not self._keeps_done else ():
                if row.state == "done":
                    self._forget(uid)

    # What is known

    def refresh(self, eager: bool = False, certain: bool = False) -> None:
        """Look what other processes have done; see Watch.look."""
        watches = self._watches
        with self.lock, self._certainly(), self._tree.apart():
            started = self._clock.monotonic()
            certain = certain or self._distrusted
            for watch in watches.values():
                watch.look(eager, certain, self._doubts(watch))
            listings = {folder: watch.listing for folder, watch in watches.items()}
            if all(listing is self._seen.get(folder) for folder, listing in listings.items()):
                return
            self._distrusted = False
            self._fetched_before, self._fetched = self._fetched, 0
            listed: dict[str, Collection[str]] = {
                folder: names_of(listings[folder], self.file) for folder in watches if folder != QUEUES
            }
            listed[QUEUES] = set(filter(is_id, listings[QUEUES].names))
            self._skip_strays(listings)
            for uid, row in self._rows.items():
                folder = FOLDER[row.state]
                elsewhere = uid not in listed[folder] and row.version <= listings[folder].at
                moving = (row.taken and not self._rows.is_aside(uid)) or uid in self._hands
                if elsewhere and not moving:
                    self._rows.drop(uid)
            ahead = [
                uid
                for folder, ids in listed.items()
                for uid in ids
                if self._rows.get(uid) is None and uid not in self._hands and not self._load(folder, uid)
            ]
            # What people have put there, at the time that the others have recorded.
            for uid in ahead:
                if not self._load(QUEUES, uid):
                    self._rename(uid)
            for uid in self._adopt(listings[QUEUES].names):
                self._load(QUEUES, uid)
            self._seen = listings
            self.serve()
            self._refreshed = self._clock.monotonic()
            self._refresh_took = self._refreshed - started

    def _place(self, folder: str, uid: str) -> str:
        return self._tree.place(folder, self.file, uid)

    def _look_now(self, certain: bool = False) -> int:
        """Look what other processes have done, and let happen what is due; what time it is."""
        self.refresh(eager=True, certain=certain)
        return self.advance()

    def _doubt(self) -> None:
        """Something is not where it was thought to be: look at folders again even if they have not changed."""
        self._doubted = self._shared.change()

    def _doubts(self, watch: Watch) -> bool:
        return watch.listing.at < self._doubted

    @contextmanager
    def _certainly(self) -> Iterator[None]:
        """If what is done here fails, part of what is known may be wrong: then everything is looked at again."""
        try:
            yield
        except BaseException:
            self._rows, self._distrusted = MessageIndex(self.settings.keep_done), True
            raise

    def _adopt(self, names: Iterable[str]) -> list[str]:
        """Give ids to what was put into the queue's folder by hand, in the order of arrival; those ids."""
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
                if self._tree.move(path, self._place(QUEUES, uid)):
                    ids.append(uid)
            except PermissionError:
                if self._tree.is_ours(path):  # then it is the folder that may not be changed
                    raise
        return ids

    def _load(self, folder: str, uid: str) -> bool:
        """Know a message that another process has put or moved there; False: its name says a time to come."""
        path = self._place(folder, uid)
        try:
            stamp = self._tree.stamp_of(path, uid)
            # Who can be stamped is a file or a folder, and we stamp no folders: only what is not is looked at.
            if not stamp.stamped and not self._tree.is_message(path):
                return True
            # Of the others in the queue, one by one, when they are fetched.
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
            self._tree.saw(stamp.order)
            self._clock.follow(stamp.received, path)
            if stamp.holder is not None:
                self._clock.follow(stamp.holder.claimed_at, path)
        self._know(uid, row)
        return True

    def _is_ahead(self, stamp: Stamp) -> bool:
        """Whether the name of a file that we have not put says a time to come."""
        return stamp.order > max(layout.first_order(self._clock.now() + _MINUTE), self._tree.order)

    def _rename(self, uid: str) -> None:
        """Give a file whose name says a time to come an id of its own: it arrives now."""
        path = self._place(QUEUES, uid)
        [other] = self._tree.next_ids(self._clock.now(), 1)
        self._tree.skip(path, f"named by a time to come: it is the message {other} from now on")
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

    # What time brings about

    def advance(self) -> int:
        """Let happen what is due: leases and delays that end, messages that expire; what time it is."""
        now = self._clock.now()
        with self.lock, self._certainly(), self._tree.apart():
            if self._rows.next_due() <= now:
                due = [(uid, row) for uid, row in self._rows.pop_due(now) if uid not in self._hands]
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
        """Let happen what is due; how many messages came back."""
        self.refresh(eager=True)
        now = self._clock.now()
        with self.lock:
            rows = [row for _, row in self._rows.items() if row.state in ("delayed", "in_flight")]
            due = sum(row.until <= now for row in rows)
        self.advance()
        return due

    def _discard(self, folder: str, ids: Sequence[str]) -> None:
        if ids:
            with self._tree.apart():
                removed = steps.remove(self._tree, self.file, folder, ids)
                for uid in ids:
                    self._forget(uid)
                if removed:
                    self._tree.sync(REMOVE, home(folder, self.file))
                    self._tree.date_removed(self.file, removed, self._clock.now())

    def _end_waiting(self, ids: Sequence[str], now: int) -> None:
        """Bring back messages whose time in delay/ is over."""
        endings = []
        for uid in ids:
            won = self._win_due(uid, now)
            if won is None:
                continue
            if won.stamp.is_held:
                ending = self._ending(won, won.until, "failed", LEASE_EXPIRED, won.until)
                ending.settled = False
                endings.append(ending)
            else:
                endings.append(Ending(won, won.until, "", None, won.until))
        delayed = [ending for ending in endings if not ending.outcome]
        for ending in delayed:
            ending.won.stamp.holder = None  # nobody's attempt ends
        for ending in steps.end(self._tree, self.file, endings):
            self._came_back(ending)

    def _win_due(self, uid: str, now: int) -> Won | None:
        """Take hold of a message whose time is over, if it still is there and its time was not put off."""
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
        except FileNotFoundError:  # somebody else brings it back, or the consumer just settles it
            self._forget(uid)
            self._doubt()
            return None
        won = Won(uid, held, self._tree.stamp_of(held, uid), self._tree.until(held))
        if won.until > now or won.stamp.is_held != stamp.is_held:
            self._tree.put_back(held, DELAY, self.file, uid)
            self._know(uid, self._row(DELAY, won.stamp, won.until))
            return None
        return won

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

    # Consumers in line: see waiting.py

    def serve(self) -> None:
        """Give waiting consumers what is available."""

    # Messages in hand

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """While messages are moved without the lock: what is listed meanwhile is older than what is then known."""
        started = self._shared.change()
        try:
            yield
        finally:
            if any(watch.listing.at >= started for watch in self._watches.values()):
                self._doubt()

    @contextmanager
    def _in_hand(self, uids: Iterable[str]) -> Iterator[None]:
        """Keep what is known of messages as it is while this thread moves them: only it knows better."""
        with self._unseen(uids), self._moving():
            yield

    @contextmanager
    def _unseen(self, uids: Iterable[str]) -> Iterator[None]:
        """Whatever is listed of messages meanwhile, nobody in this process takes notice of it."""
        held = list(uids)
        with self.lock:
            self._hands.update(held)
        try:
            yield
        finally:
            with self.lock:
                self._hands.subtract(held)
                self._hands += Counter()  # without those that nobody has in hand
                for uid in held:
                    row = self._rows.get(uid)
                    if row is not None and uid not in self._hands:
                        self._rows.put(uid, row)  # what was due meanwhile still is


def _has_expired(row: Row, now: int) -> bool:
    return row.expires_at is not None and row.expires_at <= now
