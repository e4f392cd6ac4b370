"""put() and restore() of a folder queue: checks, idempotency keys, max_size, delivery."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.contract import refusals
from penstock.contract.message import Entry, Moved
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY
from penstock.errors import InvalidPriority, PayloadTooLarge, QueueNotFound, StoreClosed
from penstock.stores.folder import groups, moves
from penstock.stores.folder.admission import NewMessage, deliver, discard, write_manifest, write_new
from penstock.stores.folder.layout import (
    DELAY,
    DONE,
    FAILED,
    HELD,
    LONG_AHEAD,
    MOVE,
    NEW,
    QUEUES,
    REMOVE,
    first_order,
    order_of,
    parse_held,
    time_of,
)
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.tree import is_full
from penstock.stores.folder.waiting import WaitingQueue
from penstock.system.clock import at_least_one


class PuttingQueue(WaitingQueue):
    """A queue that messages can be put into."""

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise if the queue's settings or the file system do not allow an entry."""
        for entry in entries:
            self.check_values(len(entry.payload), entry.priority)
            if not self._tree.has_attributes:
                self._check_plain(entry)

    def check_values(self, size: int, priority: int) -> None:
        """Refuse a payload size or priority outside of the queue's limits."""
        if size > self.settings.max_payload:
            raise PayloadTooLarge(
                f"a payload of {size} bytes; queue {self.name!r} takes at most "
                f"{self.settings.max_payload}: store it elsewhere and put its address"
            )
        lowest, highest = self.settings.priorities or (LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if not lowest <= priority <= highest:
            raise InvalidPriority(f"priority {priority}; queue {self.name!r} takes {lowest} to {highest}")

    def _check_plain(self, entry: Entry) -> None:
        retention = self.settings.retention if entry.retention is None else entry.retention
        given = {"priority": entry.priority, "headers": entry.headers, "retention": retention}
        given["group"] = entry.group is not None
        given["created_at"] = entry.created_at is not None
        for what, value in given.items():
            if value:
                self._tree.need_attributes(what)

    @property
    def is_exact(self) -> bool:
        """Whether every put needs the queue's lock, because its messages are limited."""
        return self.settings.max_size > 0

    def put(self, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none; their ids."""
        self.check(entries)
        if not self.is_exact and all(entry.key is None for entry in entries):
            return self.take_in(entries)
        with self.admission.locked():
            return self.admit(entries)

    def restore(self, moved: Sequence[Moved]) -> None:
        """Take in messages as they were in another store, all or none."""
        self._tree.need_attributes("what became of messages in another store")
        self.check(moved)
        if not self.is_exact:
            self.take_in(moved)
            return
        with self.admission.locked():
            self.check_room(sum(each.waits for each in moved))
            self.take_in(moved, exact=True)

    def admit(self, entries: Sequence[Entry]) -> list[str]:
        """Put entries with keys, or into a queue with a max_size; the queue's lock is held."""
        keyed = any(entry.key is not None for entry in entries)
        known = self.admission.known(self._clock.now()) if keyed else {}
        new: dict[Any, Entry] = {}  # by key, or by position
        for at, entry in enumerate(entries):
            if entry.key is None or entry.key not in known:
                new.setdefault(at if entry.key is None else entry.key, entry)
        self.check_room(len(new))
        ids: dict[Any, str] = {**known, **dict(zip(new, self.take_in(list(new.values()), True), strict=True))}
        return [ids[at if entry.key is None else entry.key] for at, entry in enumerate(entries)]

    def check_room(self, more: int) -> None:
        """QueueFull if the messages exceed max_size; the queue's lock is held."""
        limit = self.settings.max_size
        if not limit or not more or self.admission.room(more, limit):
            return
        size = self._count_exactly()
        self.admission.counted(size)
        if size + more > limit:
            raise refusals.full(self.name, size, limit, more)

    def _count_exactly(self) -> int:
        """The number of delayed, available and in-flight messages, those that processes are moving included."""
        self._look_now(certain=True)
        held = self._held()
        self.refresh(certain=True)  # finds messages that came back to their folder after the first listing
        with self.lock:
            waiting = {
                uid for uid, row in self._rows.items() if row.state in ("delayed", "available", "in_flight")
            }
        return len(waiting | held)

    def _held(self) -> set[str]:
        """The messages that processes are moving, and that wait in this queue now or in a moment."""
        found = set()
        for process in self._tree.names(HELD):
            for name in self._tree.names(f"{HELD}/{process}"):
                parsed = parse_held(name)
                if parsed is None:
                    continue
                if parsed.origin == MOVE:
                    move = moves.move_at(self._tree, self._tree.path(f"{HELD}/{process}/{name}"))
                    if move is not None and move.queue == self.file:
                        found.add(move.uid)
                elif parsed.queue == self.file and parsed.waits:
                    found.add(parsed.uid)
        return found

    def take_in(self, entries: Sequence[Entry], exact: bool = False) -> list[str]:
        """Write, commit and deliver entries; their ids. `exact`: the queue's lock is held, and counts them."""
        if not entries:
            return []
        if not self._has_order:
            self._learn_order()
        if any(entry.group is not None for entry in entries):
            groups.make_lock(self._tree, self.file)
        now = self._clock.now()
        ids = self._tree.next_ids(now, len(entries))
        messages = [
            NewMessage(
                uid,
                entry.payload,
                self._new_stamp(uid, entry, now),
                entry.headers,
                now,
                entry if isinstance(entry, Moved) else None,
            )
            for uid, entry in zip(ids, entries, strict=True)
        ]
        keys = {entry.key: uid for uid, entry in zip(ids, entries, strict=True) if entry.key is not None}
        write_new(self._tree, self.file, messages)
        manifest = None
        try:
            if exact:
                self.admission.admit(len(messages))
            if keys:
                self.admission.record(keys, messages, now)
            elif len(messages) > 1:
                manifest = write_manifest(self._tree, self.file, messages)
        except OSError as error:
            if not keys or is_full(error):  # else the line may be in the log, and its messages must stay
                discard(self._tree, self.file, messages)
            raise
        if keys or manifest is not None:
            self._tree.take_effect()
        with self._protected(ids):  # consumers see all of them or none
            with self._moving():
                try:
                    places = [(each.uid, each.folder) for each in messages]
                    delivered = deliver(self._tree, self.file, places)
                except OSError:
                    if not self._tree.has_effect:
                        discard(self._tree, self.file, messages)
                    raise
                if len(delivered) < len(messages):
                    self._check_delivery(messages, set(delivered))
            with self.lock:
                for each in messages:
                    self._know(each.uid, self._row(each.folder, each.stamp, each.until))
        with self.lock:
            self.serve()
        if manifest is not None:
            self._tree.disk.unlink(manifest)
        return ids

    def _check_delivery(self, messages: Sequence[NewMessage], delivered: set[str]) -> None:
        """Raise for messages that were not delivered, unless another process has moved them on or removed them."""
        for each in messages:
            if each.uid in delivered:
                continue
            if self._tree.exists(NEW, self.file, each.uid):
                discard(self._tree, self.file, messages)
                raise QueueNotFound(f"there is no queue {self.name!r} any more: it was deleted meanwhile")
            places = (REMOVE, QUEUES, DELAY, FAILED, DONE)
            if not any(self._tree.exists(folder, self.file, each.uid) for folder in places):
                raise StoreClosed(
                    "this process was silent for so long that another took it for dead, and dropped what it was "
                    "putting: put it again"
                )

    def _learn_time(self) -> None:
        """Set the clock to at least the time of the last put, before this process first stamps a message."""
        if not self._seen and not self._has_order:
            self._learn_order()

    def _learn_order(self) -> None:
        """Make ids from now on come after those of the stored messages, by their names alone."""
        self._has_order = True
        ids = self._tree.ids(QUEUES, self.file) + self._tree.ids(DELAY, self.file)
        latest = first_order(self._clock.now()) + LONG_AHEAD
        last = max((uid for uid in ids if order_of(uid) <= latest), key=order_of, default=None)
        if last is None:
            return
        self._tree.follow_order(order_of(last))
        for folder in (QUEUES, DELAY):
            with suppress(FileNotFoundError, PermissionError):
                path = self._place(folder, last)
                stamp = self._tree.stamp_of(path, last)
                if stamp.stamped and stamp.sound:
                    self._clock.follow(stamp.received, path)

    def _new_stamp(self, uid: str, entry: Entry, now: int) -> Stamp:
        stamp = Stamp(order_of(uid), entry.priority, entry.created_at, group=entry.group)
        if isinstance(entry, Moved):
            stamp.received_at = now if entry.received_at is None else entry.received_at
            stamp.visible_at, stamp.expires_at = entry.visible_at, entry.expires_at or None
            return stamp
        if time_of(stamp.order) != now:  # more messages in a millisecond than an id's clock has ticks
            stamp.received_at = now
        if delay := self.settings.waiting(entry.delay):
            stamp.visible_at = now + at_least_one(delay)
        kept = self.settings.retention if entry.retention is None else entry.retention
        if kept:
            stamp.expires_at = now + at_least_one(kept)
        return stamp
