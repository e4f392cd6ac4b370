"""How messages move: each step wins files by a rename, changes them under a private name, syncs, moves them on.

What a step changes about a message in delay/ or failed/ must not be durable before the private name is: else a
machine that stops could leave the change without the move. So that folder is synced first, and once more before
the caller is answered. A claim needs neither: in queues/ nothing that it changes counts. A process that dies in
between leaves files under private names, which recovery.py brings back. Nothing here knows what a process
remembers of a queue.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.stores.folder.layout import DELAY, DONE, FAILED, HELD, QUEUES, REMOVE
from penstock.stores.folder.stamps import Holder, Stamp, checksum, counted, with_attempt
from penstock.stores.folder.tree import Tree, folders_of, home, is_full
from penstock.system.files import refusal

Answer = TypeVar("Answer")
_PATIENCE = 500  # looks at a message that somebody else has just in hand
_MISSES = 3  # looks that find it nowhere: it may move on just then, from where it was not yet to where it was


@dataclass(slots=True)
class Won:
    """A message under its private name."""

    uid: str
    held: str
    stamp: Stamp
    until: int = 0
    payload: bytes = b""
    secret: str = ""
    at: int = 0  # when it was won, if it was available


@dataclass(slots=True)
class Winning:
    """What became of messages that someone wants to fetch."""

    won: list[Won] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # somebody else was quicker
    unfinished: list[str] = field(default_factory=list)  # still being copied into the queue
    gone: list[str] = field(default_factory=list)  # expired


def win_available(tree: Tree, queue: str, ids: Sequence[str], now: int, leased: bool) -> Winning:
    """Take hold of messages that can be fetched, to lease them or for good."""
    winning = Winning()
    for each in ids:
        try:
            held = tree.take(QUEUES, queue, each)
        except PermissionError:
            if tree.is_ours(tree.place(QUEUES, queue, each)):  # then it is the folder that may not be changed
                raise
            winning.unfinished.append(each)
            continue
        if held is None:
            winning.missing.append(each)
            continue
        try:
            stamp = tree.stamp_of(held, each)
            unfinished = not stamp.stamped and tree.disk.is_being_written(held)
            payload, wrong = b"", None
            if not unfinished:
                payload = tree.read(held)
                wrong = tree.damage(stamp, payload)
                if leased and not tree.disk.may_change(held):
                    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), held)
        except FileNotFoundError:  # this process was silent for too long
            winning.missing.append(each)
            continue
        except PermissionError as error:  # of another user, maybe: that may change
            place = tree.place(QUEUES, queue, each)
            tree.skip(place, refusal(place, error))
            unfinished = True
        if unfinished:
            tree.put_back(held, QUEUES, queue, each)
            winning.unfinished.append(each)
        elif wrong is not None:
            tree.set_aside(held, queue, each, wrong)
            winning.gone.append(each)
        elif stamp.expires_at is not None and stamp.expires_at <= now:
            tree.discard(held, queue, each)
            winning.gone.append(each)
        elif tree.exists(DELAY, queue, each):  # a copy of a message that is being worked on: one of its own
            [other] = tree.next_ids(now, 1)
            tree.move(held, tree.place(QUEUES, queue, other))
            winning.missing.append(each)
        else:
            winning.won.append(Won(each, held, stamp, payload=payload, at=now))
    return winning


def claim(tree: Tree, queue: str, won: list[Won], lease: int, consumer: str) -> list[str]:
    """Take messages on a lease; those that were taken away meanwhile are left out of `won`, and returned."""

    def stamp(won: Won) -> None:
        nonce = int.from_bytes(os.urandom(3), "big") % 999_999 + 1
        won.secret = os.urandom(8).hex() if tree.has_attributes else f"{nonce:016x}"
        _stamp_holder(tree, won, consumer)
        won.until = won.at + lease
        tree.set_until(won.held, won.until, 0 if tree.has_attributes else nonce)

    return _finish(tree, queue, won, QUEUES, DELAY, stamp, synced=True)


def pop(tree: Tree, queue: str, won: list[Won], consumer: str, keep: bool) -> list[str]:
    """Take messages for good; they stay listed only if they are kept. Returns what claim() does."""

    def stamp(won: Won) -> None:
        won.secret = os.urandom(8).hex()
        if keep:
            _stamp_holder(tree, won, consumer)
            tree.stamp(won.held, {"settled_at": str(won.at).encode()})
        else:
            won.stamp.holder = Holder("", won.stamp.attempts + 1, won.at, consumer)
        won.until = won.at

    return _finish(tree, queue, won, QUEUES, DONE if keep else REMOVE, stamp, synced=keep)


def win(tree: Tree, queue: str, uid: str, secret: str, now: int, pause: Callable[[], None]) -> Won | None:
    """Take hold of a message by its receipt; None if the receipt does not hold it."""
    path = tree.place(DELAY, queue, uid)
    misses = 0
    for _ in range(_PATIENCE):
        try:
            until = tree.until(path)
            if until <= now or tree.secret_of(path, uid) != secret:
                return None
        except FileNotFoundError:
            held_elsewhere = is_held(tree, queue, uid)
            misses = 0 if held_elsewhere else misses + 1
            if misses > 1:  # once may be that it just went back
                return None
            pause()
            continue
        held = tree.take(DELAY, queue, uid, until, leased=True)
        if held is None:
            continue
        # Between the look and the rename the lease may have ended, and the message gone to another.
        if tree.until(held) == until and tree.secret_of(held, uid) == secret:
            return Won(uid, held, tree.stamp_of(held, uid), until, secret=secret)
        tree.put_back(held, DELAY, queue, uid)
    return None


def seek(
    tree: Tree, queue: str, uid: str, look: Callable[[], Answer | None], pause: Callable[[], None]
) -> Answer | None:
    """What a look finds; again while somebody has the message in hand, and some more as it may just have moved."""
    misses = 0
    for _ in range(_PATIENCE):
        found = look()
        if found is not None:
            return found
        if is_held(tree, queue, uid):
            misses = 0
            pause()
        else:
            misses += 1
            if misses > _MISSES:
                break
    return None


def is_held(tree: Tree, queue: str, uid: str) -> bool:
    """Whether some process is just changing a message."""
    ending = f":{queue}:{uid}"
    return any(name.endswith(ending) for process in tree.names(HELD) for name in tree.names(f"{HELD}/{process}"))


def done(tree: Tree, queue: str, won: list[Won], now: int, keep: bool) -> list[str]:
    """Acknowledge; those that were taken away meanwhile are left out of `won`, and returned."""

    def stamp(each: Won) -> None:
        if keep:  # an attribute that counts only in done/
            tree.stamp(each.held, {"settled_at": str(now).encode()})

    lost = _finish(tree, queue, won, DELAY, DONE, stamp, synced=keep)
    for each in won:
        with suppress(OSError):  # when it was, for the reaper; until the lease would have ended will do, too
            nonce = 0 if tree.has_attributes else int(each.secret, 16)
            tree.set_until(tree.place(DONE, queue, each.uid), now, nonce)
    return lost


def extend(tree: Tree, queue: str, won: list[Won], until: int) -> list[str]:
    """Hold until another time; those that were taken away meanwhile are left out of `won`, and returned."""

    def stamp(each: Won) -> None:
        tree.set_until(each.held, until, 0 if tree.has_attributes else int(each.secret, 16))
        each.until = until

    if not won:
        return []
    tree.sync(tree.held)
    lost = _finish(tree, queue, won, DELAY, DELAY, stamp, synced=True)
    tree.sync(tree.held)
    return lost


@dataclass(slots=True)
class Ending:
    """How an attempt ends."""

    won: Won
    at: int
    outcome: str  # "failed" or "released"
    reason: str | None = None
    visible_at: int = 0
    settled: bool = True  # by its holder, not by time
    target: str = QUEUES


def end(tree: Tree, queue: str, endings: Sequence[Ending]) -> list[Ending]:
    """End attempts: messages go back to their queue, to delay/ or to failed/. Returns what was still there."""
    old: list[str | None] = []
    if endings:
        tree.sync(tree.held)
    for ending in endings:
        won, holder = ending.won, ending.won.stamp.holder
        stamp = won.stamp
        if tree.has_attributes and holder is not None:
            reason = holder.reason
            if ending.outcome == "failed":
                reason = None if ending.reason is None else tree.keep(ending.reason)
            past = with_attempt(
                tree.history(stamp), holder, ending.at, ending.outcome, ending.reason, ending.settled
            )
            history = tree.keep(past)
            old += [value for value in (stamp.reason, stamp.history) if value not in (reason, history)]
            stamp.attempts, stamp.reason, stamp.history = holder.attempts, reason, history
            values = {"attempts": str(stamp.attempts), "reason": reason or "", "history": history}
            values["counted"] = counted(stamp.attempts, reason, history).decode()
            if ending.target != FAILED:
                stamp.visible_at = ending.visible_at
                values["visible_at"] = str(stamp.visible_at)
            tree.stamp(won.held, {name: value.encode() for name, value in values.items()})
            stamp.ended = holder.secret
            tree.stamp(won.held, {"ended": holder.secret.encode()})
        if ending.target == FAILED:
            tree.set_until(won.held, ending.at)
        elif ending.target == DELAY:
            tree.set_until(won.held, ending.visible_at)
    tree.sync_files([ending.won.held for ending in endings])
    moved: list[Ending] = []
    folders: list[tuple[str, str]] = []
    for ending in endings:
        try:
            there = tree.move(ending.won.held, tree.place(ending.target, queue, ending.won.uid))
        except OSError as error:
            if moved and is_full(error):  # those that went are whole, and a repeat finds them so
                tree.sync(*folders_of(folders), tree.held)
                tree.count(False)
            raise
        if there:
            tree.count()
            moved.append(ending)
            folders.append((DELAY, home(ending.target, queue)))
    tree.sync(*folders_of(folders), *([tree.held] if moved else []))
    tree.forget(*old)
    return moved


def redrive(tree: Tree, queue: str, ids: Sequence[str], now: int) -> list[Won]:
    """Start over with failed messages; those that were there."""
    won: list[Won] = []
    for each in ids:
        try:
            until = tree.until(tree.place(FAILED, queue, each))
            if not tree.is_ours(tree.place(FAILED, queue, each), times=False):
                continue  # once taken it could neither go on nor back
        except FileNotFoundError:
            continue
        held = tree.take(FAILED, queue, each, until)
        if held is not None:
            tree.count()  # recovery goes on with what has that name: what it was is lost once it is stamped
            won.append(Won(each, held, tree.stamp_of(held, each), until))
    old = [each.stamp.reason for each in won]

    def stamp(each: Won) -> None:
        start_over(tree, each, max(now, each.until))  # it may have failed since we began

    if won:
        tree.sync(tree.held)
        _finish(tree, queue, won, FAILED, QUEUES, stamp, synced=True)
        tree.sync(tree.held)
    tree.forget(*old)
    return won


def start_over(tree: Tree, won: Won, now: int) -> None:
    """Stamp a failed message as one that was never attempted."""
    won.stamp.attempts, won.stamp.reason, won.stamp.visible_at = 0, None, now
    if tree.has_attributes:
        values = {"attempts": b"0", "reason": b"", "visible_at": str(now).encode()}
        tree.stamp(won.held, {**values, "counted": counted(0, None, won.stamp.history)})


def remove(tree: Tree, queue: str, folder: str, ids: Sequence[str], named: bool = False) -> list[str]:
    """Take messages out of a folder; those that were there. Syncs nothing; `date_removed` comes after that.

    Where space ends in the middle, the messages that went so far: a caller that asks for the others is told.
    Files of another user that may not be moved are skipped, unless the caller has named them.
    """
    removed: list[str] = []
    for each in ids:
        if not tree.is_message(tree.place(folder, queue, each)):
            continue  # a stray has no id
        try:
            moved = tree.move(tree.place(folder, queue, each), tree.place(REMOVE, queue, each))
        except PermissionError:
            if named or tree.is_ours(tree.place(folder, queue, each)):  # then it is the folder that is closed
                raise
            continue
        except OSError as error:
            if removed and is_full(error):
                break
            raise
        if moved:
            tree.count()
            removed.append(each)
    return removed


def _stamp_holder(tree: Tree, won: Won, consumer: str) -> None:
    won.stamp.holder = Holder(won.secret, won.stamp.attempts + 1, won.at, consumer, won.stamp.reason)
    if tree.has_attributes:
        values = {"receipt": won.stamp.holder.to_bytes()}
        if not won.stamp.stamped:
            values["order"] = str(won.stamp.order).encode()
            if won.stamp.received > won.at:  # an id may be ahead of its time
                won.stamp.received_at = won.at
                values["received_at"] = str(won.at).encode()
            values["sum"] = checksum(won.payload, {**won.stamp.found, **values})
        tree.stamp(won.held, values)


def _finish(
    tree: Tree, queue: str, won: list[Won], source: str, target: str, stamp: Callable[[Won], None], synced: bool
) -> list[str]:
    """Stamp what was won, make that durable, move it on, and make that durable.

    A process that was silent for too long may find that another has put its messages back: those leave `won`.
    """
    if not won:
        return []
    lost: list[str] = []
    folders = folders_of([(home(source, queue), home(target, queue))])
    counted_before = tree.counts
    try:
        for each in won:
            stamp(each)
        if synced:
            tree.sync_files([each.held for each in won])
        for number, each in enumerate(list(won)):
            try:
                moved = tree.move(each.held, tree.place(target, queue, each.uid))
            except OSError as error:
                if counted_before or not tree.counts or not is_full(error):
                    raise
                # There is no space for more names in the target.
                if source == QUEUES:  # nobody was told of a claim: none of it happens
                    for other in won[: number - len(lost)]:
                        tree.move(tree.place(target, queue, other.uid), tree.place(source, queue, other.uid))
                    folders.reverse()
                tree.sync(*folders)
                tree.count(False)  # what was settled is whole, and asking again is a repeat
                raise
            if moved:
                tree.count()
            else:
                won.remove(each)
                lost.append(each.uid)
    except FileNotFoundError:
        return _lose(tree, queue, won, source)
    tree.sync(*folders)
    return lost


def _lose(tree: Tree, queue: str, won: list[Won], source: str) -> list[str]:
    """Some of what was won was taken away; the rest goes back, as that is rare."""
    lost = [each.uid for each in won]
    for each in won:
        tree.put_back(each.held, source, queue, each.uid)
    won.clear()
    return lost
