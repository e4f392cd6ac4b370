"""A queue of a folder store, as one process uses it: what it knows of the messages, and the rules.

What a process knows may be a second old. So nothing is decided by it alone: a message belongs to whoever
renames its file, and what counts is what then is found in it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from penstock.clock import at_least_one
from penstock.errors import InvalidPriority, PayloadTooLarge, QueueFull
from penstock.folder import batch, stamps, steps
from penstock.folder.admission import Admission
from penstock.folder.batch import Newcomer
from penstock.folder.layout import (
    DELAY,
    DONE,
    FAILED,
    HELD,
    NEW,
    QUEUES,
    REMOVE,
    is_foreign,
    is_id,
    order_of,
    parse_flat,
    parse_held,
    time_of,
)
from penstock.folder.line import Line, Waiter
from penstock.folder.rows import NEVER, Row, Rows
from penstock.folder.shared import Shared
from penstock.folder.stamps import Stamp
from penstock.folder.steps import Ending, Won
from penstock.folder.tree import home
from penstock.folder.watching import Watch, names_of
from penstock.index.history import Attempt
from penstock.message import Entry, Message
from penstock.settings import FIVE_MINUTES, HIGHEST_PRIORITY, LOWEST_PRIORITY, Settings

Answer = TypeVar("Answer")
LEASE_EXPIRED = "lease expired"
_REPEATS = FIVE_MINUTES + 60_000
_OUTCOMES = {"fail": "failed", "release": "released", "ack": "acked"}
_FOLDER = {"available": QUEUES, "delayed": DELAY, "in_flight": DELAY, "failed": FAILED, "done": DONE}
_STATE = {QUEUES: "available", FAILED: "failed", DONE: "done"}


class FolderQueue:
    """One queue. `lock` guards what is known and who waits; files move without it."""

    def __init__(self, shared: Shared, name: str, file: str, settings: Settings) -> None:
        self.name, self.file, self.settings = name, file, settings
        self.lock = shared.threads.rlock()
        self.line = Line()
        self.admission = Admission(shared.tree, file, shared.threads)
        self._shared, self._tree, self._clock = shared, shared.tree, shared.clock
        self._rows = Rows(settings.keep_done)
        self._own = Watch(self._tree.disk, self._tree.path(home(QUEUES, file)), self._clock, shared.changes)
        self._fetched = 0  # since the last listing
        self._fetched_before = 0  # between the two listings before
        self._refreshed = self._refresh_took = 0.0
        self._has_order = False
        self._hands: Counter[str] = Counter()
        self._picked: dict[str, int] = {}  # when messages were picked that are about to be fetched: that counts
        self._doubts = False  # whether something was not where it was thought to be
        self._keeps_done = settings.keep_done != 0
        self.refusal: Callable[[], Exception] | None = None

    # What is known

    def refresh(self, eager: bool = False, certain: bool = False) -> None:
        """Look what other processes have done; see Watch.look."""
        watches = {QUEUES: self._own, DELAY: self._shared.delay, FAILED: self._shared.failed}
        if self._keeps_done:
            watches[DONE] = self._shared.done
        with self.lock:
            started = self._clock.monotonic()
            looked = [watch.look(eager, certain, self._doubts) for watch in watches.values()]  # all of them
            if not any(looked):
                return
            self._fetched_before, self._fetched = self._fetched, 0
            self._doubts = False
            listings = {folder: watch.listing for folder, watch in watches.items()}
            listed: dict[str, Collection[str]] = {
                folder: names_of(listings[folder], self.file) for folder in watches if folder != QUEUES
            }
            listed[QUEUES] = self._adopt(listings[QUEUES].names)
            for uid, row in self._rows.items():
                folder = _FOLDER[row.state]
                elsewhere = uid not in listed[folder] and row.version <= listings[folder].at
                if elsewhere and not row.taken and uid not in self._hands:
                    self._rows.drop(uid)
            for folder, ids in listed.items():
                for uid in ids:
                    if self._rows.get(uid) is None and uid not in self._hands:
                        self._load(folder, uid)
            self.serve()
            self._refreshed = self._clock.monotonic()
            self._refresh_took = self._refreshed - started

    def _adopt(self, names: Iterable[str]) -> set[str]:
        """The ids in the queue's folder; what was put there by hand gets one now, in the order of arrival."""
        ids, foreign = set(), []
        for name in names:
            if is_id(name):
                ids.add(name)
            elif is_foreign(name):
                foreign.append(name)
        found = []
        for name in foreign:
            status = self._tree.status(self._tree.place(QUEUES, self.file, name))
            if status is not None and not status.is_folder:
                found.append((status.moved, name))
        for (_, name), uid in zip(sorted(found), self._tree.next_ids(self._clock.now(), len(found)), strict=True):
            if self._tree.move(
                self._tree.place(QUEUES, self.file, name), self._tree.place(QUEUES, self.file, uid)
            ):
                ids.add(uid)
        return ids

    def _load(self, folder: str, uid: str) -> None:
        """Know a message that another process has put or moved there."""
        path = self._tree.place(folder, self.file, uid)
        try:
            stamp = self._tree.stamp_of(path, uid)
            until = self._until(folder, path, stamp)
        except FileNotFoundError:
            return
        row = self._row(folder, stamp, until)
        if row.state in ("available", "done") and self._rows.due_at(row) <= self._clock.now():
            if row.state == "available":
                self._discard(QUEUES, [uid])
            return
        self._tree.saw(stamp.order)
        if stamp.stamped:
            self._clock.at_least(stamp.received)
            if row.state == "in_flight" and stamp.holder is not None:
                self._clock.at_least(stamp.holder.claimed_at)
        self._know(uid, row)

    def _until(self, folder: str, path: str, stamp: Stamp) -> int:
        if folder == QUEUES:
            return 0
        return self._tree.settled_at(path, stamp) if folder == DONE else self._tree.until(path)

    def _row(self, folder: str, stamp: Stamp, until: int) -> Row:
        state = _STATE.get(folder) or ("in_flight" if stamp.is_held else "delayed")
        return Row(state, stamp.priority, stamp.order, until, stamp.expires_at)

    def _know(self, uid: str, row: Row) -> None:
        row.version = self._shared.change()
        self._rows.put(uid, row)

    def _forget(self, uid: str) -> None:
        self._shared.change()
        self._rows.drop(uid)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        self.refresh(eager=True)
        self.advance()
        with self.lock:
            return self._rows.counts()

    # What time brings about

    def advance(self) -> int:
        """Let happen what is due: leases and delays that end, messages that expire; what time it is."""
        now = self._clock.now()
        with self.lock:
            if self._rows.next_due() <= now:
                due = [(uid, row) for uid, row in self._rows.pop_due(now) if uid not in self._hands]
                for folder in (QUEUES, DELAY, FAILED, DONE):
                    expired = [uid for uid, row in due if _FOLDER[row.state] == folder and _has_expired(row, now)]
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
            removed = steps.remove(self._tree, self.file, folder, ids, self._clock.now())
            for uid in ids:
                self._forget(uid)
            if removed:
                self._tree.sync(REMOVE, home(folder, self.file))

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
        path = self._tree.place(DELAY, self.file, uid)
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
            self._doubts = True
            return None
        won = Won(uid, held, self._tree.stamp_of(held, uid), self._tree.until(held))
        if won.until > now or won.stamp.is_held != stamp.is_held:
            self._tree.move(held, path)
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

    # Who is served

    def serve(self) -> None:
        """Give those who wait what is available."""
        with self.lock:
            if self.line:
                self.line.serve(self._pick)

    def _pick(self, n: int) -> list[str]:
        if not self._shared.peers:
            ids = self._rows.pick(n)
        else:
            window = self._shared.window(max(self._fetched, self._fetched_before))
            ids = self._rows.pick_any(n, window, self._shared.dice)
        self._fetched += len(ids)
        for uid in ids:
            self._picked[uid] = self._clock.now()
        return ids

    def pick(self, n: int) -> list[str]:
        """What a consumer that has just come may fetch: nothing that others wait for."""
        self.refresh(eager=self._doubts and self._may_look())
        self.advance()
        with self.lock:
            self.serve()
            ids = [] if self.line else self._pick(n)
        if not ids:
            self.refresh(eager=True)
            self.advance()
            with self.lock:
                ids = [] if self.line else self._pick(n)
        return ids

    def _may_look(self) -> bool:
        """Whether to look at once what peers have left: as long as that takes a tenth of the time at most."""
        if not self._shared.peers:
            return False  # then most tries are in vain, and the next is cheaper than a look
        since = self._clock.monotonic() - self._refreshed
        return since >= 10 * self._refresh_took

    def next_due(self) -> int:
        """When time may next make something available."""
        with self.lock:
            return self._rows.next_due()

    def give_back(self, ids: Iterable[str]) -> None:
        """What was picked is not fetched after all."""
        with self.lock:
            for uid in ids:
                self._picked.pop(uid, None)
                self._rows.give_back(uid)
            self.serve()

    def fetch(self, ids: Sequence[str], lease: float, consumer: str) -> list[Message]:
        """Claim what was picked; fewer if other processes were quicker."""
        now = self._picked_at(ids)
        until = now + at_least_one(min(lease, self.settings.max_lease))
        claimed = self._fetching(
            ids, "in_flight", lambda: steps.claim(self._tree, self.file, ids, until, consumer, now)
        )
        messages = []
        for won in claimed.won:
            message = self._message(won, "in_flight")
            message.receipt = f"{won.uid}.{won.secret}"
            messages.append(message)
        return messages

    def fetch_for_good(self, ids: Sequence[str], consumer: str) -> Message | None:
        """Claim and acknowledge what was picked."""
        now, keep = self._picked_at(ids), self._keeps_done
        claimed = self._fetching(ids, "done", lambda: steps.pop(self._tree, self.file, ids, consumer, now, keep))
        return self._message(claimed.won[0], "done") if claimed.won else None

    def _picked_at(self, ids: Sequence[str]) -> int:
        with self.lock:
            return max(self._picked.pop(uid) for uid in ids)

    def _fetching(self, ids: Sequence[str], state: str, fetch: Callable[[], steps.Claimed]) -> steps.Claimed:
        try:
            claimed = fetch()
        except BaseException:
            self.give_back(ids)
            raise
        self._shared.collisions += len(claimed.missing)
        with self.lock:
            for won in claimed.won:
                row = Row(state, won.stamp.priority, won.stamp.order, won.until, won.stamp.expires_at)
                if state == "done" and not self._keeps_done:
                    self._forget(won.uid)
                else:
                    self._know(won.uid, row)
            self._doubts = self._doubts or bool(claimed.missing)
            for uid in [*claimed.missing, *claimed.gone]:
                self._forget(uid)
            for uid in claimed.busy:
                self._forget(uid)  # the next listing finds it again
        return claimed

    def _message(self, won: Won, state: str) -> Message:
        details = self._tree.details(won.stamp, state)
        return stamps.message(won.uid, self.name, won.payload, won.stamp, details, state, won.until)

    # Coming in

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse what this queue, or this file system, does not take."""
        lowest, highest = self.settings.priorities or (LOWEST_PRIORITY, HIGHEST_PRIORITY)
        for entry in entries:
            if len(entry.payload) > self.settings.max_payload:
                raise PayloadTooLarge(
                    f"a payload of {len(entry.payload)} bytes; queue {self.name!r} takes at most "
                    f"{self.settings.max_payload}: store it elsewhere and put its address"
                )
            if not lowest <= entry.priority <= highest:
                raise InvalidPriority(
                    f"priority {entry.priority}; queue {self.name!r} takes {lowest} to {highest}"
                )
            if not self._tree.has_attributes:
                self._check_plain(entry)

    def _check_plain(self, entry: Entry) -> None:
        retention = self.settings.retention if entry.retention is None else entry.retention
        given = {"priority": entry.priority, "headers": entry.headers, "retention": retention}
        given["created_at"] = entry.created_at is not None
        for what, value in given.items():
            if value:
                self._tree.need_attributes(what)

    @property
    def is_exact(self) -> bool:
        """Whether coming in needs the queue's lock."""
        return self.settings.max_size > 0

    def put(self, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none; their ids."""
        self.check(entries)
        if not self.is_exact and all(entry.key is None for entry in entries):
            return self.take_in(entries)
        with self.admission.locked():
            return self.admit(entries)

    def admit(self, entries: Sequence[Entry]) -> list[str]:
        """The same where keys and room matter; the queue's lock is held."""
        keyed = any(entry.key is not None for entry in entries)
        known = self.admission.known(self._clock.now()) if keyed else {}
        new = self._new(entries, known)
        self.check_room(len(new))
        ids = iter(self.take_in(new, exact=True))
        found = dict(known)
        answer = []
        for entry in entries:
            if entry.key is None:
                answer.append(next(ids))
            else:
                if entry.key not in found:
                    found[entry.key] = next(ids)
                answer.append(found[entry.key])
        return answer

    def _new(self, entries: Sequence[Entry], known: dict[str, str]) -> list[Entry]:
        new, keys = [], set(known)
        for entry in entries:
            if entry.key is None or entry.key not in keys:
                new.append(entry)
                if entry.key is not None:
                    keys.add(entry.key)
        return new

    def check_room(self, more: int) -> None:
        """QueueFull if so many do not fit; the queue's lock is held."""
        limit = self.settings.max_size
        if not limit or not more or self.admission.room(more, limit):
            return
        size = self._count_exactly()
        self.admission.counted(size)
        if size + more > limit:
            raise QueueFull(
                f"queue {self.name!r} holds {size} of at most {limit} messages; {more} more do not fit: put "
                "fewer, or retry when consumers have caught up"
            )

    def _count_exactly(self) -> int:
        """Messages that wait or are in flight, what other processes have just in hand included."""
        self.refresh(certain=True)
        self.advance()
        held = {
            parsed.uid
            for process in self._tree.names(HELD)
            for name in self._tree.names(f"{HELD}/{process}")
            if (parsed := parse_held(name)) is not None and parsed.queue == self.file
        }
        self.refresh(certain=True)  # what came back between the listings shows in the second
        with self.lock:
            waiting = {
                uid for uid, row in self._rows.items() if row.state in ("delayed", "available", "in_flight")
            }
        return len(waiting | held)

    def take_in(self, entries: Sequence[Entry], exact: bool = False) -> list[str]:
        """Write entries and let them take effect."""
        if not entries:
            return []
        if not self._has_order:
            self._learn_order()
        now = self._clock.now()
        ids = self._tree.next_ids(now, len(entries))
        newcomers = [
            Newcomer(uid, entry.payload, self._new_stamp(uid, entry, now), entry.headers, now)
            for uid, entry in zip(ids, entries, strict=True)
        ]
        keys = {entry.key: uid for uid, entry in zip(ids, entries, strict=True) if entry.key is not None}
        batch.write(self._tree, self.file, newcomers)
        manifest = None
        try:
            if exact:
                self.admission.admit(len(newcomers))
            if keys:
                self.admission.record(keys, newcomers, now)
            elif len(newcomers) > 1:
                manifest = batch.write_manifest(self._tree, self.file, newcomers)
        except OSError:
            if not keys:  # a line that may be there or not decides over files that must stay
                batch.discard(self._tree, self.file, newcomers)
            raise
        batch.deliver(self._tree, self.file, [(each.uid, each.folder) for each in newcomers])
        if manifest is not None:
            self._tree.disk.unlink(manifest)
        with self.lock:
            for each in newcomers:
                until = each.stamp.visible if each.folder == DELAY else 0
                self._know(each.uid, self._row(each.folder, each.stamp, until))
            self.serve()
        return ids

    def _learn_order(self) -> None:
        """What is put first by this process comes after what is there; for that the names are enough."""
        self._has_order = True
        ids = [name for name in self._tree.names(home(QUEUES, self.file)) if is_id(name)]
        ids += [uid for queue, uid in filter(None, map(parse_flat, self._tree.names(DELAY))) if queue == self.file]
        if not ids:
            return
        last = max(ids, key=order_of)
        self._tree.saw(order_of(last))
        for folder in (QUEUES, DELAY):
            with suppress(FileNotFoundError):
                stamp = self._tree.stamp_of(self._tree.place(folder, self.file, last), last)
                if stamp.stamped:
                    self._clock.at_least(stamp.received)

    def _new_stamp(self, uid: str, entry: Entry, now: int) -> Stamp:
        stamp = Stamp(order_of(uid), entry.priority, entry.created_at)
        if time_of(stamp.order) != now:  # more messages in a millisecond than it has ticks
            stamp.received_at = now
        if entry.delay:
            stamp.visible_at = now + at_least_one(entry.delay)
        kept = self.settings.retention if entry.retention is None else entry.retention
        if kept:
            stamp.expires_at = now + at_least_one(kept)
        return stamp

    # Settling

    def settle(
        self, receipts: Sequence[str], how: str, delay: float = 0.0, reason: str | None = None
    ) -> list[str]:
        """Acknowledge, fail or release; the receipts that were lost."""
        now = self.advance()
        if reason is not None:
            self._tree.need_attributes("reason")
        with self._in_hand(receipt.rpartition(".")[0] for receipt in receipts):
            return self._settle(receipts, how, now, delay, reason)

    def _settle(self, receipts: Sequence[str], how: str, now: int, delay: float, reason: str | None) -> list[str]:
        won, lost = self._win(receipts, now, how)
        if how == "ack":
            steps.done(self._tree, self.file, won, now, self._keeps_done)
            with self.lock:
                for each in won:
                    if self._keeps_done:
                        row = Row("done", each.stamp.priority, each.stamp.order, now, each.stamp.expires_at)
                        self._know(each.uid, row)
                    else:
                        self._forget(each.uid)
            return lost
        visible_at = now + at_least_one(delay) if delay else now
        outcome = _OUTCOMES[how]
        endings = [self._ending(each, now, outcome, reason, visible_at) for each in won]
        ended = steps.end(self._tree, self.file, endings)
        with self.lock:
            for ending in ended:
                self._came_back(ending)
            self.serve()
        return lost

    def extend(self, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on; until when, and the receipts that were lost."""
        now = self.advance()
        until = now + at_least_one(min(lease, self.settings.max_lease))
        with self._in_hand(receipt.rpartition(".")[0] for receipt in receipts):
            won, lost = self._win(receipts, now, None)
            steps.extend(self._tree, self.file, won, until)
            with self.lock:
                for each in won:
                    row = Row("in_flight", each.stamp.priority, each.stamp.order, until, each.stamp.expires_at)
                    self._know(each.uid, row)
        return until, lost

    @contextmanager
    def _in_hand(self, uids: Iterable[str]) -> Iterator[None]:
        """Keep what is known of messages as it is while this thread moves them: only it knows better."""
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

    def _win(self, receipts: Sequence[str], now: int, how: str | None) -> tuple[list[Won], list[str]]:
        """Take hold of the messages that receipts hold; the receipts that do not, and repeat nothing."""
        won: dict[str, Won] = {}
        lost = []
        for receipt in receipts:
            uid, _, secret = receipt.rpartition(".")
            if uid in won and won[uid].secret == secret:
                continue  # named twice
            found = None
            if is_id(uid) and secret:
                pause = self._shared.neighbours.pause
                found = steps.win(self._tree, self.file, uid, secret, now, pause)
            if found is not None and found.stamp.expires_at is not None and found.stamp.expires_at <= now:
                self._tree.discard(found.held, self.file, uid, now)
                self._forget(uid)
                found = None
            if found is not None:
                won[uid] = found
            elif how is None or not is_id(uid) or self._outcome(uid, secret, now) != _OUTCOMES[how]:
                lost.append(receipt)
        return list(won.values()), lost

    def _outcome(self, uid: str, secret: str, now: int) -> str | None:
        """How a receipt was settled; None if it was not, or too long ago."""
        return self._seek(uid, partial(self._look_at_outcome, uid, secret, now)) or None

    def _look_at_outcome(self, uid: str, secret: str, now: int) -> str | None:
        """The same of a message that nobody has in hand; empty if it is there, and the receipt was not settled."""
        for folder in (QUEUES, DELAY, FAILED, DONE, REMOVE):
            try:
                stamp = self._tree.stamp_of(self._tree.place(folder, self.file, uid), uid)
            except FileNotFoundError:
                continue
            was_done = folder == DONE or (folder == REMOVE and stamp.settled_at is not None)
            if was_done and stamp.holder is not None and stamp.is_held and stamp.holder.secret == secret:
                return "acked"
            return stamps.outcome_of(self._tree.history(stamp), secret, now - _REPEATS) or ""
        return None

    # Out of turn

    def remove(self, ids: Sequence[str]) -> int:
        """Take messages out in any state; how many were there."""
        now = self.advance()
        removed = 0
        folders = set()
        for uid in dict.fromkeys(ids):
            if not is_id(uid):
                continue
            folder = self._seek(uid, partial(self._remove_one, uid, now))
            if folder is not None:
                removed += not self._was_over(uid, folder, now)
                folders.add(home(folder, self.file))
            with self.lock:
                self._forget(uid)
        if folders:
            self._tree.sync(REMOVE, *sorted(folders))
        return removed

    def _remove_one(self, uid: str, now: int) -> str | None:
        """Take a message out; of which folder."""
        for folder in (NEW, QUEUES, DELAY, FAILED, *([DONE] if self._keeps_done else [])):
            if steps.remove(self._tree, self.file, folder, [uid], now):
                return folder
        return None

    def _seek(self, uid: str, look: Callable[[], Answer | None]) -> Answer | None:
        return steps.seek(self._tree, self.file, uid, look, self._shared.neighbours.pause)

    def _was_over(self, uid: str, folder: str, now: int) -> bool:
        """Whether a message that was just removed had expired, or was no longer listed."""
        try:
            stamp = self._tree.stamp_of(self._tree.place(REMOVE, self.file, uid), uid)
        except FileNotFoundError:
            return False
        if folder == DONE and self._rows.due_at(self._row(DONE, stamp, stamp.settled_at or now)) <= now:
            return True
        return stamp.expires_at is not None and stamp.expires_at <= now

    def redrive(self, ids: Sequence[str] | None) -> int:
        """Start over with failed messages; None: with all of them."""
        self.refresh(eager=True)
        now = self.advance()
        with self.lock:
            failed = {uid for uid, row in self._rows.items() if row.state == "failed"}
        wanted = sorted(failed) if ids is None else [uid for uid in dict.fromkeys(ids) if is_id(uid)]
        if self.is_exact:
            with self.admission.locked():
                won = steps.redrive(self._tree, self.file, wanted, now)
                self.admission.admit(len(won))
        else:
            won = steps.redrive(self._tree, self.file, wanted, now)
        with self.lock:
            for each in won:
                self._know(each.uid, self._row(QUEUES, each.stamp, 0))
            self.serve()
        return len(won)

    def purge(self) -> int:
        """Take out everything but what is in flight; how many."""
        self.refresh(eager=True)
        now = self.advance()
        with self.lock:
            rows = [(uid, row) for uid, row in self._rows.items() if row.state != "in_flight" and not row.taken]
        removed, folders = 0, []
        for folder in (QUEUES, FAILED, DONE):
            gone = steps.remove(
                self._tree, self.file, folder, [uid for uid, row in rows if _FOLDER[row.state] == folder], now
            )
            removed += len(gone)
            folders += [home(folder, self.file)] if gone else []
        for uid in [uid for uid, row in rows if row.state == "delayed"]:
            removed += self._remove_delayed(uid, now)
            folders.append(DELAY)
        with self.lock:
            for uid, _ in rows:
                self._forget(uid)
        if folders:
            self._tree.sync(REMOVE, *dict.fromkeys(folders))
        return removed

    def _remove_delayed(self, uid: str, now: int) -> bool:
        """Only if no consumer has got it meanwhile."""
        try:
            path = self._tree.place(DELAY, self.file, uid)
            until = self._tree.until(path)
            held = self._tree.take(DELAY, self.file, uid, until)
            if held is None:
                return False
            stamp = self._tree.stamp_of(held, uid)
        except FileNotFoundError:
            return False
        if stamp.is_held:
            self._tree.move(held, path)
            return False
        self._tree.discard(held, self.file, uid, now)
        return True

    # Looking

    def peek(self, n: int) -> Iterator[Message]:
        """What claim would give."""
        self.refresh(eager=True)
        self.advance()
        with self.lock:
            ids = self._rows.peek(n)
        return (message for uid in ids if (message := self.view(uid)) is not None)

    def messages(self, state: str | None) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put."""
        last = -1
        while True:
            self.refresh(eager=True)
            self.advance()
            with self.lock:
                rows = [
                    (row.order, uid)
                    for uid, row in self._rows.items()
                    if row.order > last and (state is None or row.state == state)
                ]
            if not rows:
                return
            for order, uid in sorted(rows):
                last = order
                message = self.view(uid)
                if message is not None and state in (None, message.state):
                    yield message

    def attempts(self, uid: str) -> list[Attempt]:
        """The attempts at a message."""
        self.refresh(eager=True)
        self.advance()
        found = self._find(uid, lambda path: b"")
        if found is None:
            return []
        state, stamp, until, _ = found
        return stamps.attempts_of(stamp, self._tree.details(stamp, state), state, until)

    def view(self, uid: str) -> Message | None:
        """A message as anyone may see it."""
        found = self._find(uid, self._tree.read)
        if found is None:
            return None
        state, stamp, until, payload = found
        details = self._tree.details(stamp, state)
        return stamps.message(uid, self.name, payload, stamp, details, state, until)

    def _find(self, uid: str, read: Callable[[str], bytes]) -> tuple[str, Stamp, int, bytes] | None:
        with self.lock:
            row = self._rows.get(uid)
        if row is None or not is_id(uid):
            return None
        first = _FOLDER[row.state]
        for _ in range(3):  # it may just be on its way
            for folder in dict.fromkeys((first, QUEUES, DELAY, FAILED, DONE)):
                path = self._tree.place(folder, self.file, uid)
                try:
                    stamp = self._tree.stamp_of(path, uid)
                    until = self._until(folder, path, stamp)
                    payload = read(path)
                except FileNotFoundError:
                    continue
                if folder == DONE and not self._keeps_done:
                    return None
                return self._row(folder, stamp, until).state, stamp, until, payload
        return None

    # The end

    def stop(self, error: Callable[[], Exception]) -> None:
        """Send away who waits."""
        with self.lock:
            self.refusal = error
            self.line.send_away(error)

    def stand_in_line(self, waiter: Waiter, first: bool = False) -> None:
        """Wait for one's turn."""
        with self.lock:
            if self.refusal is not None:
                raise self.refusal()
            self.line.join(waiter, first)
            self.serve()

    def leave_line(self, waiter: Waiter) -> None:
        """Wait no more; what was already given is given back."""
        with self.lock:
            self.line.leave(waiter)
            if waiter.ids:
                self.give_back(waiter.ids)
                waiter.ids = []


def _has_expired(row: Row, now: int) -> bool:
    return row.expires_at is not None and row.expires_at <= now


__all__ = ["NEVER", "FolderQueue"]
