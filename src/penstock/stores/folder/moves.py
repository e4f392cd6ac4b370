"""Moves of messages to another queue of a folder store, as file operations.

A message is one file all the while, so it cannot be in two queues:

1. It is taken, as for any other change. The private folder is synced, then the folder that the message was in.
2. The attribute `move` says what the message will be in the other queue. The file is synced. Under the name that
   it has so far the attribute means nothing.
3. A rename inside the private folder gives it a name that begins with `move`. The private folder is synced. This
   decides: up to here recovery puts the message back, from here on it completes the move.
4. The message gets the attributes that `move` tells, and is synced. Repeating this step writes the same.
5. It is renamed to its place in the other queue, and the folders are synced.

If the other queue is deleted in between, the message is removed with it. What a consumer has settled may be
repeated for five minutes: an empty file in remove/ tells of it, under the message's old id.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.contract.settings import FIVE_MINUTES
from penstock.stores.folder import stamps
from penstock.stores.folder.layout import DELAY, MOVE, QUEUES, REMOVE, parse_held
from penstock.stores.folder.stamps import Move, Stamp
from penstock.stores.folder.steps import Won
from penstock.stores.folder.tree import Tree, home, is_full
from penstock.system.files import refusal

REPEATS = FIVE_MINUTES + 60_000  # for how long what a consumer has settled is remembered, in milliseconds
_LONGEST = 200  # bytes of headers in the attribute `move`, which there is beside all others


@dataclass(slots=True)
class Taking:
    """The result of taking messages that shall move."""

    won: list[tuple[Won, str]] = field(default_factory=list)  # with the folder that each was in
    missing: list[str] = field(default_factory=list)  # gone, claimed, or in the hands of another process
    staying: list[str] = field(default_factory=list)  # damaged, still being written, or of another user


def take(tree: Tree, queue: str, folders: Sequence[tuple[str, str]], now: int) -> Taking:
    """Take messages that wait or have failed, (id, folder) each."""
    taking = Taking()
    for uid, folder in folders:
        place, held = tree.place(folder, queue, uid), None
        try:
            if not tree.is_message(place) or not tree.is_ours(place, times=folder == DELAY):
                (taking.staying if tree.disk.exists(place) else taking.missing).append(uid)
                continue
            in_flight = folder == DELAY and tree.stamp_of(place, uid).is_held
            until = tree.until(place)
            if not in_flight:
                held = tree.take(folder, queue, uid, 0 if folder == QUEUES else until, redriven=False)
            if held is None:
                taking.missing.append(uid)
                continue
            stamp, payload = tree.stamp_of(held, uid), tree.read(held)
            if folder == DELAY and (stamp.is_held or tree.until(held) != until):  # claimed a moment ago
                tree.put_back(held, folder, queue, uid)
                taking.missing.append(uid)
            elif stamp.expires_at is not None and stamp.expires_at <= now:
                tree.discard(held, queue, uid)
                taking.missing.append(uid)
            elif (wrong := _why_not(tree, held, stamp, payload)) is not None:
                tree.put_back(held, folder, queue, uid)
                tree.skip(place, f"{wrong}, so it does not move to another queue")
                taking.staying.append(uid)
            else:
                taking.won.append((Won(uid, held, stamp, until if folder == DELAY else 0), folder))
        except FileNotFoundError:
            taking.missing.append(uid)
        except PermissionError as error:
            if tree.is_ours(place, times=folder == DELAY):  # then the folder is write-protected, not the file
                raise
            if held is not None:
                tree.put_back(held, folder, queue, uid)
            tree.skip(place, refusal(place, error))
            taking.staying.append(uid)
    return taking


def _why_not(tree: Tree, held: str, stamp: Stamp, payload: bytes) -> str | None:
    """Why a taken message stays in its queue; None if it may move."""
    if not stamp.stamped and tree.disk.is_being_written(held):
        return "it is still being written"
    wrong = tree.damage(stamp, payload)
    return None if wrong is None else f"it is damaged ({wrong})"


def kept_headers(tree: Tree, headers: dict[str, str]) -> str:
    """The attribute `headers` that a message gets with its move."""
    return tree.keep_value(headers, _LONGEST) if headers else ""


def cross(
    tree: Tree, queue: str, leaving: Sequence[tuple[Won, str, Move]]
) -> list[tuple[Won, Move, Stamp | None]]:
    """Move taken messages, each from a folder; those that moved, with their attributes if this process knows them.

    Not those that another process has put back meanwhile. On a full disk it moves those that have a new name by
    then, or raises if there are none.
    """
    tree.sync(tree.held, *sorted({home(folder, queue) for _, folder, _ in leaving}))
    decided: dict[str, str] = {}  # private names of the messages that move, by their ids
    for won in _announce(tree, queue, leaving):
        path = tree.private(MOVE, queue, won.uid)
        try:
            moved = tree.move(won.held, path)
        except OSError as error:
            if decided and is_full(error):
                break
            raise
        if moved:
            tree.take_effect()
            decided[won.uid] = path
    tree.sync(tree.held)
    arrived = complete(tree, list(decided.values()))
    moved_on = []
    for won, folder, move in leaving:
        if won.uid not in decided:
            tree.put_back(won.held, folder, queue, won.uid)
            continue
        before = won.stamp
        tree.drop_values(before.reason, before.history, before.holder.reason if before.holder else None)
        if move.headers is not None:
            tree.drop_values(before.headers)
        moved_on.append((won, move, arrived.get(move.uid)))
    return moved_on


def _announce(tree: Tree, queue: str, leaving: Sequence[tuple[Won, str, Move]]) -> list[Won]:
    """Write the attribute `move`, and what of the past may be repeated; the messages that are still there."""
    there, outcomes = [], []
    for won, _, move in leaving:
        with suppress(FileNotFoundError):  # another process took this one for dead
            tree.stamp(won.held, {"move": move.to_bytes()})
            if (outcome := _outcomes(tree, queue, won, move.at)) is not None:
                outcomes.append((outcome, won.uid))
            there.append(won)
    synced = set(_sync_files(tree, [*(outcome for outcome, _ in outcomes), *(won.held for won in there)]))
    for outcome, uid in outcomes:
        tree.move(outcome, tree.place(REMOVE, queue, uid))
    if outcomes:
        tree.sync(REMOVE)
    return [won for won in there if won.held in synced]


def _outcomes(tree: Tree, queue: str, won: Won, now: int) -> str | None:
    """Write an empty file with the outcomes that may be repeated; its path, None if there are none."""
    recent = [entry for entry in tree.history(won.stamp) if entry[6] and entry[3] > now - REPEATS]
    if not recent:
        return None
    path = tree.private(REMOVE, queue, won.uid)
    tree.write_new(path, b"")
    values = {"order": b"%d" % won.stamp.order, "history": tree.keep_value(recent).encode()}
    tree.stamp(path, values)
    tree.set_until(path, now)
    return path


def complete(tree: Tree, paths: Sequence[str]) -> dict[str, Stamp]:
    """Complete moves that are decided; the attributes of the messages that arrived, by their new ids.

    A message that is gone was completed by another process.
    """
    changed: list[tuple[str, Move, Stamp]] = []
    for path in paths:
        with suppress(FileNotFoundError):
            if (move := move_at(tree, path)) is None:
                held = parse_held(os.path.basename(path))
                if held is not None:  # if it is still there
                    tree.quarantine(path, held.queue, held.uid, "its attribute `move` is not what was written")
                continue
            tree.stamp(path, move.attributes(tree.stamp_of(path, move.uid).found, tree.read(path)))
            if move.until:
                tree.set_until(path, move.until)
            changed.append((path, move, tree.stamp_of(path, move.uid)))
    synced = set(_sync_files(tree, [path for path, _, _ in changed]))
    arrived: dict[str, Stamp] = {}
    folders: dict[str, None] = {}
    for path, move, stamp in changed:
        if path not in synced:
            continue
        if tree.move(path, tree.place(move.folder, move.queue, move.uid)):
            folders[home(move.folder, move.queue)] = None
            arrived[move.uid] = stamp
        elif tree.move(path, tree.place(REMOVE, move.queue, move.uid)):  # the other queue was deleted
            folders[REMOVE] = None
    tree.sync(*folders, tree.held)
    return arrived


def _sync_files(tree: Tree, paths: Sequence[str]) -> Sequence[str]:
    """Sync files; those that are there."""
    while True:
        try:
            tree.sync_files(paths)
        except FileNotFoundError:  # another process took this one for dead
            paths = [path for path in paths if tree.disk.exists(path)]
        else:
            return paths


def move_at(tree: Tree, path: str) -> Move | None:
    """Where a taken message was moving to at last; None if it was not, or is gone."""
    held = parse_held(os.path.basename(path))
    if held is None:
        return None
    with suppress(FileNotFoundError):
        return stamps.move_of(tree.stamp_of(path, held.uid).found)
    return None
