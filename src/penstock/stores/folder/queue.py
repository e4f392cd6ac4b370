"""Operations on a queue of a folder store: claim, pop, ack, fail, extend, remove, redrive, purge, listings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from heapq import heapify, heappop
from itertools import islice
from typing import TypeAlias, TypeVar

from penstock.contract.message import Attempt, Message
from penstock.contract.operations import Held
from penstock.engine.unowned import between, fitting
from penstock.errors import LeaseExpired, StoreCorrupt
from penstock.stores.folder import groups, stamps, steps
from penstock.stores.folder.index import Row
from penstock.stores.folder.layout import DELAY, DONE, FAILED, HELD, NEW, QUEUES, REMOVE, is_id
from penstock.stores.folder.moves import REPEATS
from penstock.stores.folder.sending import SendingQueue
from penstock.stores.folder.steps import Won
from penstock.stores.folder.tree import home, is_full
from penstock.stores.folder.view import FOLDER
from penstock.system.clock import at_least_one

Answer = TypeVar("Answer")
_Rank: TypeAlias = tuple[int, str]  # of a message in the order of puts: its order, its id
_BEFORE_ALL: _Rank = (-1, "")
_OUTCOMES = {"fail": "failed", "release": "released", "ack": "acked"}


class FolderQueue(SendingQueue):
    """One queue with all of its operations."""

    # Claiming

    def claim(
        self,
        n: int,
        lease: float | None,
        wait: float,
        consumer: str,
        most: int | None = None,
        ack: Sequence[str] = (),
    ) -> list[Message]:
        """Lease up to n messages; `most` limits their bytes, except for the first message.

        Receipts in `ack` are acknowledged before; if some are lost, nothing is claimed.
        """
        if ack and (lost := self.ack(ack)):
            raise LeaseExpired(self.name, lost)

        def claim(won: list[Won]) -> list[str]:
            granted = at_least_one(self.settings.granted(lease))
            return steps.claim(self._tree, self.file, won, granted, consumer)

        def fetch(ids: Sequence[str]) -> list[Message]:
            messages = []
            for won in self._fetching(self._within(ids, most), "in_flight", claim):
                message = self._message(won, "in_flight")
                message.receipt = f"{won.uid}.{won.secret}"
                messages.append(message)
            return messages

        return self._take(n, wait, fetch)

    def _within(self, ids: Sequence[str], most: int | None) -> Sequence[str]:
        """The first of the picked messages that have at most that many bytes; the others are given back."""
        if most is None:
            return ids
        paths = (self._place(QUEUES, uid) for uid in ids)
        sizes = (0 if (status := self._tree.status(path)) is None else status.size for path in paths)
        try:
            count = fitting(sizes, most)
        except BaseException:
            self._give_back(ids)
            raise
        if count < len(ids):
            self._give_back(ids[count:])
        return ids[:count]

    def pop(self, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def pop(won: list[Won]) -> list[str]:
            return steps.pop(self._tree, self.file, won, consumer, self._keeps_done)

        def fetch(ids: Sequence[str]) -> list[Message]:
            return [self._message(won, "done") for won in self._fetching(ids, "done", pop)]

        return next(iter(self._take(1, wait, fetch)), None)

    def _fetching(self, ids: Sequence[str], state: str, finish: Callable[[list[Won]], list[str]]) -> list[Won]:
        with self._moving():
            picked = list(ids)
            try:
                with groups.claiming(self._tree, self.file) as alone:
                    won = self._win_picked(picked, alone, leased=state == "in_flight" or self._keeps_done)
                    lost = finish(won)
            except BaseException:
                self._give_back(picked)
                raise
            with self.lock:
                for each in won:
                    if state == "done" and not self._keeps_done:
                        self._forget(each.uid)
                    else:
                        self._know(each.uid, Row.of(state, each.stamp, each.until))
                self._miss(lost)
        return won

    def _win_picked(self, picked: list[str], alone: bool, leased: bool) -> list[Won]:
        """Take picked messages, and others in the place of those that cannot be taken."""
        won: list[Won] = []
        wanted, more = len(picked), list(picked)
        while more := self._in_turn(more, picked, alone):
            winning = steps.win_available(self._tree, self.file, more, self._picked_at(more), leased)
            won += winning.won
            with self.lock:
                self._miss(winning.missing)
                for uid in winning.gone:
                    self._forget(uid)
                for uid in winning.unfinished:
                    self._rows.postpone(uid, self._shared.change())
                more = self._pick(wanted - len(won)) if 0 < len(won) < wanted and not self.line else []
            picked += more
        won.sort(key=lambda each: (each.stamp.priority, each.stamp.order))
        return won

    def _in_turn(self, ids: list[str], picked: list[str], alone: bool) -> list[str]:
        """Those of picked messages whose turn it is; see groups.py. The others leave `picked`."""
        with self.lock:
            grouped = {uid: group for uid in ids if (group := self._rows.group_of(uid)) is not None}
        if not grouped:
            return ids
        later: set[str] = set()  # messages whose group another process is moving
        not_first: set[str] = set()
        if not alone:  # the queue's first groups have just come
            groups.make_lock(self._tree, self.file)
            later.update(grouped)
        for folder in DELAY, HELD, HELD, QUEUES, DELAY, HELD:
            if later >= grouped.keys():
                break
            if folder == HELD:
                moving = groups.moving(self._tree, self.file)
                later.update(uid for uid, group in grouped.items() if group in moving)
                continue
            self._learn_of(folder, set(grouped.values()))
            with self.lock:
                not_first.update(uid for uid in grouped if not self._rows.is_first(uid))
        with self.lock:
            for uid in not_first | later:
                picked.remove(uid)
                self._picked.pop(uid, None)
            for uid in later - not_first:
                self._rows.postpone(uid, self._shared.change())
            for uid in not_first:
                self._rows.give_back(uid)
            self.serve()
        return [uid for uid in ids if uid not in not_first and uid not in later]

    def _picked_at(self, ids: Sequence[str]) -> int:
        with self.lock:  # a message that another thread has seen leave has no time here, and is not won either
            return max(self._picked.pop(uid, self._clock.now()) for uid in ids)

    def _miss(self, ids: Sequence[str]) -> None:
        """Drop messages that other processes took first."""
        self._shared.collisions += len(ids)
        for uid in ids:
            self._forget(uid)
        if ids:
            self._mark_stale()

    def _message(self, won: Won, state: str) -> Message:
        details = self._tree.details(won.stamp, state)
        return stamps.message(won.uid, self.name, won.payload, won.stamp, details, state, won.until)

    # Settling

    def ack(self, receipts: Sequence[str]) -> list[str]:
        """Acknowledge; the receipts that were lost, as of fail() and release()."""
        return self._settle(receipts, "ack")

    def fail(self, receipts: Sequence[str], delay: float | None, reason: str | None) -> list[str]:
        return self._settle(receipts, "fail", delay, reason)

    def release(self, receipts: Sequence[str]) -> list[str]:
        return self._settle(receipts, "release", 0)

    def _settle(
        self, receipts: Sequence[str], how: str, delay: float | None = None, reason: str | None = None
    ) -> list[str]:
        self._learn_time()
        now = self.advance()
        if reason is not None:
            self._tree.need_attributes("reason")
        with self._protected(map(_id_of, receipts)), self._moving():
            won, lost = self._win(receipts, now, how)
            now = self._clock.now()  # read after the messages were taken: earlier changes have earlier times
            if how == "ack":
                return lost + self._done(won, receipts, now)
            endings = [
                self._ending(each, now, _OUTCOMES[how], reason, self._retry_at(each, now, delay)) for each in won
            ]
            ended = steps.end(self._tree, self.file, endings)
            there = {ending.won.uid for ending in ended}
            lost += [f"{each.uid}.{each.secret}" for each in won if each.uid not in there]
            with self.lock:
                for ending in ended:
                    self._came_back(ending)
                self.serve()
        return lost

    def _done(self, won: list[Won], receipts: Sequence[str], now: int) -> list[str]:
        taken = steps.done(self._tree, self.file, won, now, self._keeps_done)
        with self.lock:
            for each in won:
                if self._keeps_done:
                    self._know(each.uid, Row.of("done", each.stamp, now))
                else:
                    self._forget(each.uid)
            self.serve()  # the next of a group may be claimed now
        return [receipt for receipt in receipts if _id_of(receipt) in taken]

    def extend(self, receipts: Sequence[str], lease: float | None) -> Held:
        """Restart leases from now; their end, and the receipts that were lost."""
        self._learn_time()
        now = self.advance()
        ids = map(_id_of, receipts)
        with groups.claiming(self._tree, self.file), self._protected(ids), self._moving():
            won, lost = self._win(receipts, now, None)
            until = self._clock.now() + at_least_one(self.settings.granted(lease))
            taken = steps.extend(self._tree, self.file, won, until)
            lost += [receipt for receipt in receipts if _id_of(receipt) in taken]
            with self.lock:
                for each in won:
                    self._know(each.uid, Row.of("in_flight", each.stamp, until))
        return Held(until, lost)

    def _win(self, receipts: Sequence[str], now: int, how: str | None) -> tuple[list[Won], list[str]]:
        """Take the messages of valid receipts; and the lost receipts, without repeats of `how`."""
        won: dict[str, Won] = {}
        lost = []
        for receipt in receipts:
            uid, _, secret = receipt.rpartition(".")
            if uid in won:  # the same receipt twice, or an earlier receipt of the same message
                if won[uid].secret != secret and (
                    how is None or self._was(won[uid], secret, now) != _OUTCOMES[how]
                ):
                    lost.append(receipt)
                continue
            found = None
            if is_id(uid) and secret:
                pause = self._shared.neighbours.pause
                found = steps.win(self._tree, self.file, uid, secret, now, pause)
            if found is not None and found.stamp.expires_at is not None and found.stamp.expires_at <= now:
                self._tree.discard(found.held, self.file, uid)
                self._forget(uid)
                found = None
            if found is not None:
                won[uid] = found
                if found.stamp.holder is not None:
                    self._clock.follow(found.stamp.holder.claimed_at, found.held)
            elif how is None or not is_id(uid) or self._outcome(uid, secret, now) != _OUTCOMES[how]:
                lost.append(receipt)
        return list(won.values()), lost

    def _was(self, won: Won, secret: str, now: int) -> str | None:
        """How an earlier receipt of a taken message was settled; None if it was not, or too long ago."""
        return stamps.outcome_of(self._tree.history(won.stamp), secret, now - REPEATS)

    def _outcome(self, uid: str, secret: str, now: int) -> str | None:
        """How a receipt was settled; None if it was not, or too long ago."""
        return self._seek(uid, partial(self._look_at_outcome, uid, secret, now)) or None

    def _look_at_outcome(self, uid: str, secret: str, now: int) -> str | None:
        """How a receipt was settled; empty if the message has no such attempt, None if there is no message."""
        for folder in (QUEUES, DELAY, FAILED, DONE, REMOVE):
            try:
                stamp = self._tree.stamp_of(self._place(folder, uid), uid)
            except FileNotFoundError:
                continue
            was_done = folder == DONE or (folder == REMOVE and stamp.settled_at is not None)
            if was_done and stamp.holder is not None and stamp.is_held and stamp.holder.secret == secret:
                return "acked"
            return stamps.outcome_of(self._tree.history(stamp), secret, now - REPEATS) or ""
        return None

    def revoke(self, ids: Sequence[str]) -> int:
        """Release messages in flight without their receipts; how many."""
        held = (self._seek(uid, partial(self._look_at_receipt, uid)) for uid in dict.fromkeys(ids) if is_id(uid))
        receipts = list(filter(None, held))
        return len(receipts) - len(self.release(receipts))

    def _look_at_receipt(self, uid: str) -> str | None:
        """The receipt of a message in delay/, empty if it is not held; None if it is not there."""
        try:
            secret = self._tree.secret_of(self._place(DELAY, uid), uid)
        except FileNotFoundError:
            return None
        return f"{uid}.{secret}" if secret else ""

    # Removing and redriving

    def remove(self, ids: Sequence[str]) -> Iterator[int]:
        """Remove messages in any state; how many, batch by batch, each durable when it is returned."""
        now = self.advance()
        wanted = [uid for uid in dict.fromkeys(ids) if is_id(uid)]
        while wanted:
            with self._tree.separate_effect():
                removed, tried = self._remove(wanted, now)
            self.serve()
            del wanted[:tried]
            yield removed

    def _remove(self, ids: Sequence[str], now: int) -> tuple[int, int]:
        """Remove messages up to one that the disk refuses; how many existed, and how many were tried."""
        removed = 0
        folders: dict[str, str] = {}  # the folder of each message
        tried = 0
        for uid in ids:
            try:
                folder = self._seek(uid, partial(self._remove_one, uid))
            except OSError as error:
                if folders and (is_full(error) or isinstance(error, PermissionError)):
                    break
                raise
            tried += 1
            if folder is not None:
                removed += not self._was_over(uid, folder, now)
                folders[uid] = home(folder, self.file)
            with self.lock:
                row = self._rows.get(uid)
                if uid in self._protected_ids or (row is not None and row.taken):
                    self._mark_stale()  # the thread that is moving it will add its row again
                self._forget(uid)
        self._sync_removed(folders, now)
        return removed, tried

    def _sync_removed(self, folders: dict[str, str], now: int) -> None:
        if folders:
            self._tree.sync(REMOVE, *sorted(set(folders.values())))
            self._tree.date_removed(self.file, folders, now)

    def _remove_one(self, uid: str) -> str | None:
        """Remove a message; the folder that it was in."""
        for folder in (NEW, QUEUES, DELAY, FAILED, *([DONE] if self._keeps_done else [])):
            if steps.remove(self._tree, self.file, folder, [uid], named=True):
                return folder
        return None

    def _seek(self, uid: str, look: Callable[[], Answer | None]) -> Answer | None:
        return steps.seek(self._tree, self.file, uid, look, self._shared.neighbours.pause)

    def _was_over(self, uid: str, folder: str, now: int) -> bool:
        """Whether a message that was just removed had expired, or was no longer listed."""
        try:
            stamp = self._tree.stamp_of(self._place(REMOVE, uid), uid)
        except (FileNotFoundError, PermissionError):  # reaped already; a file of another user
            return False
        if folder == DONE and self._rows.due_at(self._row(DONE, stamp, stamp.settled_at or now)) <= now:
            return True
        return stamp.expires_at is not None and stamp.expires_at <= now

    def redrive(self, ids: Sequence[str] | None) -> int:
        """Make failed messages available again; None: all of them."""
        now = self._look_now()
        with self.lock:
            failed = {uid for uid, row in self._rows.items() if row.state == "failed"}
        wanted = sorted(failed) if ids is None else [uid for uid in dict.fromkeys(ids) if is_id(uid)]
        with self.admission.locked() if self.is_exact else nullcontext():
            won = steps.redrive(self._tree, self.file, wanted, now)
            if self.is_exact:
                self.admission.admit(len(won))
        with self.lock:
            for each in won:
                self._know(each.uid, self._row(QUEUES, each.stamp, 0))
            self.serve()
        return len(won)

    def let_go_of_done(self) -> None:
        """Remove done messages that are no longer listed: a longer keep_done would list them again."""
        now, over = self._look_now(certain=True), []
        with self._tree.separate_effect():
            for uid in self._tree.ids(DONE, self.file):
                path = self._place(DONE, uid)
                with suppress(FileNotFoundError):
                    stamp = self._tree.stamp_of(path, uid)
                    row = self._row(DONE, stamp, self._tree.settled_at(path, stamp))
                    if self._keeps_done and self._rows.due_at(row) > now:
                        continue
                    if stamp.settled_at is None and self._tree.has_attributes:
                        # So that in remove/ it is known to be acknowledged, and its ack can be repeated.
                        self._tree.stamp(path, {"settled_at": str(row.until).encode()})
                    over.append(uid)
            self._purged(dict.fromkeys(steps.remove(self._tree, self.file, DONE, over), DONE), now)

    def purge(self) -> Iterator[int]:
        """Remove all messages but those in flight; how many, batch by batch, each durable when it is returned."""
        now = self._look_now(certain=True)
        held = self._held()  # a message that is being released goes, too
        with self.lock:
            rows = [(uid, row) for uid, row in self._rows.items() if row.state != "in_flight" or uid in held]
        left = {uid: FOLDER[row.state] for uid, row in rows}
        for folder in (QUEUES, FAILED, DONE):
            with self._tree.separate_effect():
                gone = steps.remove(self._tree, self.file, folder, [uid for uid in left if left[uid] == folder])
                self._purged(dict.fromkeys(gone, home(folder, self.file)), now)
            for uid in gone:
                del left[uid]
            yield len(gone)
        while left:  # delayed messages, messages that processes are moving, messages that a full disk has refused
            folders: dict[str, str] = {}  # the folder of each message
            with self._tree.separate_effect():
                for uid in list(left):
                    try:
                        found = self._seek(uid, partial(self._purge_one, uid))
                    except OSError as error:
                        if folders and is_full(error):
                            break
                        raise
                    del left[uid]
                    if found:
                        folders[uid] = home(found, self.file)
                self._purged(folders, now)
            yield len(folders)

    def _purged(self, folders: dict[str, str], now: int) -> None:
        with self.lock:
            for uid in folders:
                self._forget(uid)
            self._mark_stale()
        self._sync_removed(folders, now)

    def _purge_one(self, uid: str) -> str | None:
        """Remove a message that is not in flight; its folder, empty if it is in flight, None if not found."""
        for folder in (QUEUES, FAILED, *([DONE] if self._keeps_done else [])):
            if steps.remove(self._tree, self.file, folder, [uid]):
                return folder
        if self._remove_delayed(uid):
            return DELAY
        return "" if self._tree.exists(DELAY, self.file, uid) else None

    def _remove_delayed(self, uid: str) -> bool:
        """Remove a message from delay/, unless a consumer has claimed it meanwhile."""
        try:
            path = self._place(DELAY, uid)
            until = self._tree.until(path)
            held = self._tree.take(DELAY, self.file, uid, until)
            if held is None:
                return False
            stamp = self._tree.stamp_of(held, uid)
        except FileNotFoundError:
            return False
        if stamp.is_held:
            self._tree.put_back(held, DELAY, self.file, uid)
            return False
        try:
            self._tree.discard(held, self.file, uid)
        except OSError:
            self._tree.put_back(held, DELAY, self.file, uid)
            raise
        return True

    # Listing

    def peek(self, n: int, skip: int = 0) -> Iterator[Message]:
        """The next n messages in the order of claims, after `skip` others; damaged ones are logged."""
        self.retry_postponed()
        self._look_now()
        with self.lock:
            ids = self._rows.peek(n + skip)
        return islice(self._sound(ids), skip, None)

    def _sound(self, ids: Iterable[str]) -> Iterator[Message]:
        for uid in ids:
            try:
                message = self.view(uid)
            except StoreCorrupt as error:
                self._tree.skip(self._place(QUEUES, uid), str(error))
                continue
            if message is not None:
                yield message

    def messages(
        self, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """Messages in a state, in the order of their puts, between two ids; StoreCorrupt after all sound ones."""
        if not after and not until:
            return self._messages(state)
        self._look_now()
        first, last = self._rank(after), self._rank(until)
        if (after and first is None) or (until and last is None):  # it has gone meanwhile
            return between(lambda: self._messages(None), state, after, until)
        return self._messages(state, first or _BEFORE_ALL, last)

    def _rank(self, uid: str) -> _Rank | None:
        row = self._rows.get(uid)
        return None if row is None else (row.order, uid)

    def _messages(
        self, state: str | None, last: _Rank = _BEFORE_ALL, end: _Rank | None = None
    ) -> Iterator[Message]:
        """Messages from after one rank up to another; only those that the caller takes are read."""
        damaged: list[StoreCorrupt] = []
        while True:
            self._look_now()
            with self.lock:
                ranks = [
                    rank
                    for uid, row in self._rows.items()
                    if (rank := (row.order, uid)) > last
                    and (state is None or row.state == state)
                    and (end is None or rank <= end)
                ]
            if not ranks:
                for error in damaged:
                    raise error
                return
            heapify(ranks)  # a page needs few of them
            while ranks:
                last = _, uid = heappop(ranks)
                try:
                    message = self.view(uid)
                except StoreCorrupt as error:
                    damaged.append(error)
                    continue
                if message is not None and state in (None, message.state):
                    yield message

    def message(self, id: str) -> Message | None:  # noqa: A002 - the contract's word
        """A message in any state; None if there is none. StoreCorrupt if its checksums are wrong."""
        self._look_now()
        return self.view(id)

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        self._look_now()
        found = self._find(id, lambda path: b"")
        if found is None:
            return []
        state, stamp, until, _ = found
        return stamps.attempts_of(stamp, self._tree.details(stamp, state), state, until)

    def view(self, uid: str) -> Message | None:
        """A message for callers; None if it is gone. StoreCorrupt if its checksums are wrong."""
        found = self._find(uid, self._tree.read)
        if found is None:
            return None
        state, stamp, until, payload = found
        wrong = self._tree.damage(stamp, payload)
        if wrong is not None:
            if self._find(uid, self._tree.read) is None:
                return None  # it was removed while it was read
            raise StoreCorrupt(
                f"message {uid} of queue {self.name!r} is damaged: {wrong}. `penstock doctor` shows its file; a "
                "claim would set it aside and give the next one"
            )
        details = self._tree.details(stamp, state)
        return stamps.message(uid, self.name, payload, stamp, details, state, until)


def _id_of(receipt: str) -> str:
    return receipt.rpartition(".")[0]
