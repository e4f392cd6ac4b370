"""Claim, pop, ack, fail, extend, redrive and remove of a folder queue, as file operations.

Each step takes a message by renaming it into the process's private folder, changes it there, syncs it and renames
it to its next folder. A taken message is called won.

The changes to a message from delay/ or failed/ must not become durable before its private name does: else a power
failure could leave the changes without the move. So the private folder is synced first, and again before the
caller is answered. A claim needs neither, because a message in queues/ ignores the attributes that a claim
changes. A process that dies in between leaves messages in its private folder, which recovery.py puts back.
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
_PATIENCE = 500  # tries for a message that another process is moving
_MISSES = 3  # tries that find it nowhere: it may move between the folders that were looked at


@dataclass(slots=True)
class Won:
    """A message that this process has taken."""

    uid: str
    held: str  # its path in the private folder
    stamp: Stamp
    until: int = 0
    payload: bytes = b""
    secret: str = ""
    at: int = 0  # when it was taken out of queues/


@dataclass(slots=True)
class Winning:
    """The result of taking available messages."""

    won: list[Won] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # another process took them first
    unfinished: list[str] = field(default_factory=list)  # still being written, or of another user
    gone: list[str] = field(default_factory=list)  # expired or damaged


def win_available(tree: Tree, queue: str, ids: Sequence[str], now: int, leased: bool) -> Winning:
    """Take available messages; `leased`: their files are going to be stamped, so this user must be allowed to."""
    winning = Winning()
    for each in ids:
        try:
            held = tree.take(QUEUES, queue, each)
        except PermissionError:
            if tree.is_ours(tree.place(QUEUES, queue, each)):  # then the folder is write-protected, not the file
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
        except FileNotFoundError:  # another process took this one for dead
            winning.missing.append(each)
            continue
        except PermissionError as error:  # a file of another user; its mode may change
            place = tree.place(QUEUES, queue, each)
            tree.skip(place, refusal(place, error))
            unfinished = True
        if unfinished:
            tree.put_back(held, QUEUES, queue, each)
            winning.unfinished.append(each)
        elif wrong is not None:
            tree.quarantine(held, queue, each, wrong)
            winning.gone.append(each)
        elif stamp.expires_at is not None and stamp.expires_at <= now:
            tree.discard(held, queue, each)
            winning.gone.append(each)
        elif tree.exists(DELAY, queue, each):  # a person's copy of a message in flight: it gets an id of its own
            [other] = tree.next_ids(now, 1)
            tree.move(held, tree.place(QUEUES, queue, other))
            winning.missing.append(each)
        else:
            winning.won.append(Won(each, held, stamp, payload=payload, at=now))
    return winning


def claim(tree: Tree, queue: str, won: list[Won], lease: int, consumer: str) -> list[str]:
    """Lease messages; those that another process has put back leave `won`, and their ids are returned."""

    def stamp(won: Won) -> None:
        nonce = int.from_bytes(os.urandom(3), "big") % 999_999 + 1
        won.secret = os.urandom(8).hex() if tree.has_attributes else f"{nonce:016x}"
        _stamp_holder(tree, won, consumer)
        won.until = won.at + lease
        tree.set_until(won.held, won.until, 0 if tree.has_attributes else nonce)

    return _finish(tree, queue, won, QUEUES, DELAY, stamp, synced=True)


def pop(tree: Tree, queue: str, won: list[Won], consumer: str, keep: bool) -> list[str]:
    """Acknowledge available messages; `keep`: they stay listed as done. Returns the lost ids, as claim() does."""

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
    """Take a message by its receipt; None if the lease is over."""
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
            if misses > 1:  # the first may be a message that was just put back
                return None
            pause()
            continue
        held = tree.take(DELAY, queue, uid, until, leased=True)
        if held is None:
            continue
        # Between the look and the rename the lease may have ended, and another consumer may have claimed it.
        if tree.until(held) == until and tree.secret_of(held, uid) == secret:
            return Won(uid, held, tree.stamp_of(held, uid), until, secret=secret)
        tree.put_back(held, DELAY, queue, uid)
    return None


def seek(
    tree: Tree, queue: str, uid: str, look: Callable[[], Answer | None], pause: Callable[[], None]
) -> Answer | None:
    """The answer of `look`, repeated while a process is moving the message, or may have moved it past the look."""
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
    """Whether a message is in the private folder of a process."""
    ending = f":{queue}:{uid}"
    return any(name.endswith(ending) for process in tree.names(HELD) for name in tree.names(f"{HELD}/{process}"))


def done(tree: Tree, queue: str, won: list[Won], now: int, keep: bool) -> list[str]:
    """Acknowledge taken messages; `keep`: they stay listed. Returns the lost ids, as claim() does."""

    def stamp(each: Won) -> None:
        if keep:  # harmless before the move: the attribute is valid only in done/
            tree.stamp(each.held, {"settled_at": str(now).encode()})

    lost = _finish(tree, queue, won, DELAY, DONE, stamp, synced=keep)
    for each in won:
        with suppress(OSError):  # the time of the ack, for the reaper; the end of the lease will do, too
            nonce = 0 if tree.has_attributes else int(each.secret, 16)
            tree.set_until(tree.place(DONE, queue, each.uid), now, nonce)
    return lost


def extend(tree: Tree, queue: str, won: list[Won], until: int) -> list[str]:
    """Change the end of leases. Returns the lost ids, as claim() does."""

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
    """The end of a lease or of a delay, and the folder that its message goes to."""

    won: Won
    at: int
    outcome: str  # "failed" or "released"; empty: a delay is over
    reason: str | None = None
    visible_at: int = 0
    settled: bool = True  # by its consumer, not by time
    target: str = QUEUES


def end(tree: Tree, queue: str, endings: Sequence[Ending]) -> list[Ending]:
    """Move messages to queues/, delay/ or failed/; the endings whose message was still in the private folder."""
    old: list[str | None] = []
    if endings:
        tree.sync(tree.held)
    for ending in endings:
        won, holder = ending.won, ending.won.stamp.holder
        stamp = won.stamp
        if tree.has_attributes and holder is not None:
            reason = holder.reason
            if ending.outcome == "failed":
                reason = None if ending.reason is None else tree.keep_value(ending.reason)
            past = with_attempt(
                tree.history(stamp), holder, ending.at, ending.outcome, ending.reason, ending.settled
            )
            history = tree.keep_value(past)
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
            if moved and is_full(error):  # the moved ones are complete: repeating the call settles the others
                tree.sync(*folders_of(folders), tree.held)
                tree.take_effect(False)
            raise
        if there:
            tree.take_effect()
            moved.append(ending)
            folders.append((DELAY, home(ending.target, queue)))
    tree.sync(*folders_of(folders), *([tree.held] if moved else []))
    tree.drop_values(*old)
    return moved


def redrive(tree: Tree, queue: str, ids: Sequence[str], now: int) -> list[Won]:
    """Make failed messages available again; those that were in failed/."""
    won: list[Won] = []
    for each in ids:
        try:
            until = tree.until(tree.place(FAILED, queue, each))
            if not tree.is_ours(tree.place(FAILED, queue, each), times=False):
                continue  # a taken message that cannot be stamped could go neither on nor back
        except FileNotFoundError:
            continue
        held = tree.take(FAILED, queue, each, until)
        if held is not None:
            tree.take_effect()  # recovery completes a redrive: its stamp overwrites what an undo would need
            won.append(Won(each, held, tree.stamp_of(held, each), until))
    old = [each.stamp.reason for each in won]

    def stamp(each: Won) -> None:
        start_over(tree, each, max(now, each.until))  # it may have failed after this call began

    if won:
        tree.sync(tree.held)
        _finish(tree, queue, won, FAILED, QUEUES, stamp, synced=True)
        tree.sync(tree.held)
    tree.drop_values(*old)
    return won


def start_over(tree: Tree, won: Won, now: int) -> None:
    """Reset the attempts of a failed message."""
    won.stamp.attempts, won.stamp.reason, won.stamp.visible_at = 0, None, now
    if tree.has_attributes:
        values = {"attempts": b"0", "reason": b"", "visible_at": str(now).encode()}
        tree.stamp(won.held, {**values, "counted": counted(0, None, won.stamp.history)})


def remove(tree: Tree, queue: str, folder: str, ids: Sequence[str], named: bool = False) -> list[str]:
    """Move messages from a folder to remove/; the ids that were there. The caller syncs and dates them after it.

    On a full disk it returns the ids that were moved, or raises if there are none. Files of another user are
    skipped, unless the caller has named them.
    """
    removed: list[str] = []
    for each in ids:
        if not tree.is_message(tree.place(folder, queue, each)):
            continue
        try:
            moved = tree.move(tree.place(folder, queue, each), tree.place(REMOVE, queue, each))
        except PermissionError:
            if named or tree.is_ours(tree.place(folder, queue, each)):  # then the folder is write-protected
                raise
            continue
        except OSError as error:
            if removed and is_full(error):
                break
            raise
        if moved:
            tree.take_effect()
            removed.append(each)
    return removed


def _stamp_holder(tree: Tree, won: Won, consumer: str) -> None:
    won.stamp.holder = Holder(won.secret, won.stamp.attempts + 1, won.at, consumer, won.stamp.reason)
    if tree.has_attributes:
        values = {"receipt": won.stamp.holder.to_bytes()}
        if won.stamp.settled_at is not None:  # of a pop that died: it would say that this attempt is acknowledged
            won.stamp.settled_at, values["settled_at"] = None, b""
        if not won.stamp.stamped:
            values["order"] = str(won.stamp.order).encode()
            if won.stamp.received > won.at:  # the id of another program may be ahead of the clock
                won.stamp.received_at = won.at
                values["received_at"] = str(won.at).encode()
            values["sum"] = checksum(won.payload, {**won.stamp.found, **values})
        tree.stamp(won.held, values)


def _finish(
    tree: Tree, queue: str, won: list[Won], source: str, target: str, stamp: Callable[[Won], None], synced: bool
) -> list[str]:
    """Stamp taken messages, sync them, move them to the target folder, and sync the folders.

    If another process took this one for dead it has put messages back: those leave `won`, their ids are returned.
    """
    if not won:
        return []
    lost: list[str] = []
    folders = folders_of([(home(source, queue), home(target, queue))])
    counted_before = tree.has_effect
    try:
        for each in won:
            stamp(each)
        if synced:
            tree.sync_files([each.held for each in won])
        for number, each in enumerate(list(won)):
            try:
                moved = tree.move(each.held, tree.place(target, queue, each.uid))
            except OSError as error:
                if counted_before or not tree.has_effect or not is_full(error):
                    raise
                # The target folder has no space for more names.
                if source == QUEUES:  # no consumer knows of the claim yet: undo all of it
                    for other in won[: number - len(lost)]:
                        tree.move(tree.place(target, queue, other.uid), tree.place(source, queue, other.uid))
                    folders.reverse()
                tree.sync(*folders)
                tree.take_effect(False)  # the moved ones are settled: repeating the call settles the others
                raise
            if moved:
                tree.take_effect()
            else:
                won.remove(each)
                lost.append(each.uid)
    except FileNotFoundError:
        return _lose(tree, queue, won, source)
    tree.sync(*folders)
    return lost


def _lose(tree: Tree, queue: str, won: list[Won], source: str) -> list[str]:
    """Put all taken messages back, because another process has already put back some of them."""
    lost = [each.uid for each in won]
    for each in won:
        tree.put_back(each.held, source, queue, each.uid)
    won.clear()
    return lost
