"""Recovery from processes that died, and upkeep: delivery of other programs' files, reaping of settled messages.

Messages in the private folder of a dead process go back, committed batches are delivered, files of unfinished puts
are dropped. A power failure may also leave a message under two names, where a rename became durable on one side
only. Nobody was told of that move, so either place is right; the one that is further on is kept.

Files in long/ that no message names are removed when a store is opened after such a death, and only by a process
that is alone: while messages move, the one that names a file may be missed. A process that is not alone leaves a
mark for the next.

Every process that uses a store unlinks some settled messages, at most once a second; `penstock mover` and
`penstock reaper` are for stores that no process uses for long.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

from penstock.contract.settings import FIVE_MINUTES
from penstock.stores.folder import layout, moves, steps
from penstock.stores.folder.admission import Admission, deliver, read_manifest
from penstock.stores.folder.catalog import Catalog
from penstock.stores.folder.index import NEVER
from penstock.stores.folder.layout import (
    ABANDONED,
    BATCHES,
    DAMAGED,
    DELAY,
    DONE,
    FAILED,
    HELD,
    KEYS,
    LONG,
    MOVE,
    NEW,
    PROBE,
    QUEUES,
    REMOVE,
    SETTINGS,
    Held,
    is_id,
    is_made_here,
    maker_of,
    node_of,
    parse_held,
    time_of,
)
from penstock.stores.folder.shared import Shared
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.steps import Won
from penstock.stores.folder.tree import Tree, home
from penstock.system.clock import milliseconds
from penstock.system.files import Status, refusal

# The name to keep of a message with two. One in queues/ is right whichever way it was moving: the attributes that
# are valid there were complete before it came, and an unacknowledged claim changes none of them.
_FURTHEST_FIRST = (DAMAGED, REMOVE, DONE, QUEUES, FAILED, DELAY, NEW)
_PATIENCE = 60.0  # seconds after which a file in new/ is no unfinished put of a process that has no private folder


def recover(shared: Shared, catalog: Catalog) -> None:
    """Recover a store that is being opened; other processes may be using it."""
    tree = shared.tree
    gone = _gone(shared)
    with catalog.locked():
        for listed in catalog.read().values():
            if listed.deleted:
                catalog.clear(listed)
            else:
                catalog.make_folder(listed)
    recover_dead(shared, gone)
    if any(shared.neighbours.has_stopped(process) for process in gone):
        drop_copies(shared)
    _drop_orphans(tree, after_death=bool(gone))
    deliver_foreign(shared)


def recover_dead(shared: Shared, gone: list[str]) -> None:
    """Complete or undo the operations of dead processes."""
    if gone:
        sync_all(shared)
        _finish_batches(shared, gone)
        _drop_unfinished(shared, gone)
        _put_back(shared, gone)


def sync_all(shared: Shared) -> None:
    """Sync every folder of messages, targets of moves before their sources: the reverse could lose a message."""
    tree = shared.tree
    tree.sync(SETTINGS, KEYS, LONG, QUEUES)
    tree.sync(DELAY, FAILED, DONE, REMOVE, *(f"{QUEUES}/{queue}" for queue in tree.queue_folders()), NEW)


def undo(shared: Shared) -> None:
    """Put back the messages that this thread's operation has taken."""
    touched = set()
    for path in shared.tree.still_held():
        parsed = parse_held(os.path.basename(path))
        if parsed is not None:
            touched.add(_bring_back(shared, path, parsed))
    shared.tree.sync(*sorted(touched), *([shared.tree.held] if touched else []))


def _put_back(shared: Shared, gone: list[str]) -> None:
    """Put back the messages in the private folders of dead processes, and remove the folders."""
    tree = shared.tree
    folders = [f"{HELD}/{process}" for process in sorted(gone)]
    touched: set[str] = set()
    held: list[tuple[Held, str]] = []
    for path in [tree.path(f"{folder}/{name}") for folder in folders for name in tree.names(folder)]:
        parsed = parse_held(os.path.basename(path))
        if os.path.basename(path) in (PROBE, ABANDONED):
            with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                tree.disk.unlink(path)
        elif parsed is None:
            tree.skip(path, "its name is not that of a message which a process has taken")
        elif tree.is_message(path):
            held.append((parsed, path))
    # The latest name of a message first: it has the true origin. A power failure during recovery may leave an
    # older name of the same message in another private folder.
    held.sort(key=lambda each: each[0].taken, reverse=True)
    for parsed, path in held:
        touched.add(_bring_back(shared, path, parsed))
    tree.sync(*sorted(touched))
    for folder in folders:
        tree.sync(folder)
        with suppress(OSError):
            tree.disk.rmdir(tree.path(folder))
    tree.sync(HELD)


def _bring_back(shared: Shared, path: str, held: Held) -> str:
    """Put a taken message back; the folder that it went to."""
    tree = shared.tree
    status = tree.status(path)
    if status is None:
        return home(held.origin, held.queue)
    if status.names > 1:  # a power failure kept both names of a move: it is also at its origin, or at its target
        for folder, queue, uid in _other_places(tree, path, held):
            other = tree.status(tree.place(folder, queue, uid))
            if other is None or other.inode != status.inode:
                continue
            if folder == FAILED and held.redriven:  # which is completed below
                tree.disk.unlink(tree.place(folder, queue, uid))
                tree.sync(folder)
                continue
            if folder == held.origin == DELAY and uid == held.uid:  # the change was not acknowledged
                _undo(shared, path, held)
                tree.sync_files([path])
            tree.disk.unlink(path)
            return home(folder, queue)
    # Take it first: another process may be recovering it too.
    mine = tree.path(f"{tree.held}/{path.rpartition('/')[2]}")
    if not tree.move(path, mine):
        return home(held.origin, held.queue)
    target = held.origin
    if held.origin == MOVE:
        move = moves.move_at(tree, mine)
        moves.complete(tree, [mine])
        return tree.held if move is None else home(move.folder, move.queue)
    if held.origin == DELAY:
        _undo(shared, mine, held)
    elif held.redriven:  # its stamp may have overwritten what an undo would need
        # The time when it was taken, if the clock was set back since: the store's time is not known yet.
        at = max(shared.clock.now(), min(time_of(held.taken), shared.clock.horizon()))
        steps.start_over(tree, Won(held.uid, mine, tree.stamp_of(mine, held.uid)), at)
        target = QUEUES
    tree.sync_files([mine])
    if not tree.move(mine, tree.place(target, held.queue, held.uid)):  # its queue was deleted
        tree.move(mine, tree.place(REMOVE, held.queue, held.uid))
        target = REMOVE
    return home(target, held.queue)


def _other_places(tree: Tree, path: str, held: Held) -> Iterator[tuple[str, str, str]]:
    """Where a taken message may be too: (folder, queue, id)."""
    moved = moves.move_at(tree, path)
    names = [] if held.origin == MOVE else [(held.queue, held.uid)]
    names += [] if moved is None else [(moved.queue, moved.uid)]
    for queue, uid in names:
        yield from ((folder, queue, uid) for folder in _FURTHEST_FIRST)


def _undo(shared: Shared, path: str, held: Held) -> None:
    """Restore the lease or the delay of a message from delay/."""
    tree = shared.tree
    if tree.has_attributes:  # without attributes the mtime is all there is, and it has the lease's nonce
        stamp = tree.stamp_of(path, held.uid)
        if held.leased and stamp.holder is not None and stamp.ended == stamp.holder.secret:
            tree.stamp(path, {"ended": b""})
        if stamp.settled_at is not None:
            tree.stamp(path, {"settled_at": b""})
        if tree.until(path) != held.until:  # only if needed: this user may not be allowed to set it
            tree.set_until(path, held.until)


def drop_copies(shared: Shared) -> None:
    """Leave each message under one name, after a power failure."""
    tree = shared.tree
    found: dict[int, list[tuple[str, str, str]]] = {}
    places = [(folder, *each) for folder in _FURTHEST_FIRST if folder != QUEUES for each in tree.messages(folder)]
    for place in places:
        status = tree.status(tree.place(*place))
        if status is not None and status.names > 1 and tree.is_message(tree.place(*place)):
            found.setdefault(status.inode, []).append(place)
    for queue in tree.queue_folders() if found else ():
        for name in tree.names(f"{QUEUES}/{queue}"):
            status = tree.status(tree.place(QUEUES, queue, name))
            if status is not None and status.inode in found and tree.is_message(tree.place(QUEUES, queue, name)):
                found[status.inode].append((QUEUES, queue, name))
    for names in found.values():
        names.sort(key=lambda place: _FURTHEST_FIRST.index(place[0]))
        for folder, queue, name in names[1:]:
            tree.disk.unlink(tree.place(folder, queue, name))
            tree.sync(home(folder, queue))


def _finish_batches(shared: Shared, gone: list[str]) -> None:
    """Deliver the committed batches of dead processes."""
    tree = shared.tree
    nodes = {node_of(process) for process in gone}
    for name in tree.names(BATCHES):
        path = tree.path(f"{BATCHES}/{name}")
        if not is_id(name.removesuffix(".new")) or maker_of(name.removesuffix(".new")) not in nodes:
            continue
        if not name.endswith(".new") and (found := read_manifest(tree, path)) is not None:
            queue, messages = found
            for each, _ in messages:
                status = tree.status(tree.place(NEW, queue, each))
                if status is not None and status.names > 1:  # delivered; a power failure brought its old name back
                    tree.disk.unlink(tree.place(NEW, queue, each))
            deliver(tree, queue, messages)
        with suppress(FileNotFoundError):
            tree.disk.unlink(path)
    tree.sync(BATCHES)


def _drop_unfinished(shared: Shared, gone: list[str]) -> None:
    """Remove the unfinished puts of dead processes; a put whose keys are in the log is delivered."""
    tree = shared.tree
    nodes = {node_of(process) for process in gone}
    by_queue: dict[str, list[str]] = {}
    for queue, uid in tree.messages(NEW):
        if maker_of(uid) in nodes and tree.is_message(tree.place(NEW, queue, uid)):
            by_queue.setdefault(queue, []).append(uid)
    for queue, ids in by_queue.items():
        admission = Admission(tree, queue, shared.threads)
        with admission.locked():
            admission.catch_up()
            for each in ids:
                path = tree.place(NEW, queue, each)
                status = tree.status(path)
                if status is None:
                    continue
                with suppress(OSError):
                    if status.names == 1:
                        stamp = tree.stamp_of(path, each)
                        tree.drop_values(stamp.headers, stamp.reason, stamp.history)
                with suppress(FileNotFoundError):
                    tree.disk.unlink(path)
    if by_queue:
        tree.sync(NEW)


def deliver_foreign(shared: Shared) -> None:
    """Deliver files that another program has written to new/ as QUEUE:NAME, as MQ-Core does."""
    tree = shared.tree
    there = [name for name in tree.names(NEW) if not name.startswith(".")]
    if not there:
        return
    nodes, queues = {node_of(process) for process in tree.names(HELD)}, set(tree.queue_folders())
    touched: set[str] = set()
    for name in sorted(there):
        queue, _, uid = name.partition(":")
        path = tree.path(f"{NEW}/{name}")
        if is_id(uid) and maker_of(uid) in nodes:
            continue  # a put in progress
        if queue not in queues or not uid or uid.startswith("."):
            tree.skip(path, "its name is not QUEUE:ID with the name of a folder in queues/")
        elif tree.is_message(path) and tree.is_ours(path) and _is_foreign(shared, path, uid):
            target = tree.place(QUEUES, queue, uid)
            if tree.disk.exists(target):
                tree.skip(path, f"there is a message of that name already: {target}")
                continue
            tree.sync_files([path])
            if tree.move(path, target):
                touched.add(home(QUEUES, queue))
    if touched:
        tree.sync(*sorted(touched), NEW)


def _is_foreign(shared: Shared, path: str, uid: str) -> bool:
    """Whether a file in new/ is complete, and not an unfinished put of Penstock."""
    tree = shared.tree
    try:
        if is_id(uid) and is_made_here(uid):
            status = tree.status(path)
            stamped = not tree.has_attributes or tree.stamp_of(path, uid).stamped
            if status is None or stamped or shared.neighbours.idle(status.moved) < _PATIENCE:
                return False
        return not tree.disk.is_being_written(path)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        tree.skip(path, refusal(path, error))
        return False


def _gone(shared: Shared) -> list[str]:
    """The processes with a private folder that are dead or have abandoned it."""
    return [
        process
        for process in shared.tree.names(HELD)
        if process != shared.tree.process and _is_gone(shared, process)
    ]


def _is_gone(shared: Shared, process: str) -> bool:
    folder = shared.tree.path(f"{HELD}/{process}")
    status = shared.tree.status(folder)
    if status is None:
        return False
    if shared.tree.disk.exists(f"{folder}/{ABANDONED}"):
        return True
    return shared.neighbours.is_gone(process, shared.neighbours.idle(status.moved))


_MARK = "look"  # asks the next process to look for orphans; no process has this name


def _drop_orphans(tree: Tree, after_death: bool) -> None:
    """Unlink files in long/ that no message names, if a process has died since that was last done."""
    there = tree.names(LONG)
    if not there or not (after_death or _MARK in there):
        return
    alone = _alone(tree)
    named = set(_named(tree)) if alone else set()
    if alone is None or _alone(tree) != alone:  # another process may have moved a message past this one
        tree.disk.open(tree.path(f"{LONG}/{_MARK}"), create=True).close()
        return
    for name in there:
        if name not in named:
            with suppress(FileNotFoundError):
                tree.disk.unlink(tree.path(f"{LONG}/{name}"))


def _alone(tree: Tree) -> Status | None:
    """The status of held/, if no other process is in it; it differs after one has come and gone."""
    there = tree.status(tree.path(HELD))
    return there if tree.names(HELD) == [tree.held.rpartition("/")[2]] else None


def orphans(tree: Tree) -> list[str]:
    """The files in long/ that no message names."""
    there = [name for name in tree.names(LONG) if name != _MARK]
    named = set(_named(tree)) if there else set()
    return sorted(set(there) - named)


def _named(tree: Tree) -> Iterator[str]:
    """The files in long/ that messages name."""
    for stamp in _stamps(tree):
        reason = stamp.holder.reason if stamp.holder is not None else None
        for value in (stamp.headers, stamp.reason, stamp.history, reason):
            if value is not None and value.startswith("@"):
                yield value[1:]


def _stamps(tree: Tree) -> Iterator[Stamp]:
    places = [(QUEUES, file, uid) for file in tree.queue_folders() for uid in tree.names(home(QUEUES, file))]
    for folder in (NEW, DELAY, DONE, FAILED, REMOVE):
        places += [(folder, *each) for each in tree.messages(folder)]
    for folder, queue, uid in places:
        with suppress(FileNotFoundError, ValueError):
            yield tree.stamp_of(tree.place(folder, queue, uid), uid)


_OFTEN = 1.0  # seconds between two rounds of reaping
_SELDOM = 30.0  # seconds between two rounds of recovery
_MOST = 20_000  # files that one round unlinks


class Upkeep:
    """Recovery and reaping by a process that uses the store; `keep_done` answers a queue's setting by its file."""

    def __init__(self, shared: Shared, keep_done: Callable[[str], float | None]) -> None:
        self._shared = shared
        self._keep_done = keep_done
        self._last = self._last_thorough = shared.clock.monotonic()

    def tend(self) -> None:
        """Reap after a second, recover and reap thoroughly after half a minute."""
        now = self._shared.clock.monotonic()
        if now - self._last_thorough >= _SELDOM:
            self._last = self._last_thorough = now
            self.recover_dead()
            self.reap()
        elif now - self._last >= _OFTEN:
            self._last = now
            self._reap(REMOVE)

    def recover_dead(self) -> None:
        """Complete or undo the operations of dead processes; deliver files of other programs."""
        recover_dead(self._shared, _gone(self._shared))
        deliver_foreign(self._shared)

    def reap(self, queue: str | None = None) -> int:
        """Unlink messages that are no longer listed and whose receipts are no longer remembered; how many.

        `queue`: only those of the queue with that folder, all of them.
        """
        return self._reap(DONE, queue) + self._reap(REMOVE, queue)

    def _reap(self, folder: str, queue: str | None = None) -> int:
        tree, now, keep_done = self._shared.tree, self._shared.clock.now(), cache(self._keep_done)
        reaped = 0
        # Sync moves out of private folders first: else a power failure brings back a name without its file.
        tree.sync(*(f"{HELD}/{process}" for process in tree.names(HELD)))
        for name in tree.names(folder):
            if reaped >= _MOST and queue is None:
                break
            if queue is not None and name.partition(":")[0] != queue:
                continue
            try:
                kept = keep_done(name.partition(":")[0]) if folder == DONE else None
                if (stamp := settled_for_good(tree, folder, name, kept, now)) is None:
                    continue
                tree.disk.unlink(tree.path(f"{folder}/{name}"))
            except (FileNotFoundError, IsADirectoryError, PermissionError):
                continue
            reaped += 1
            tree.drop_values(stamp.headers, stamp.reason, stamp.history)
        return reaped


def settled_for_good(tree: Tree, folder: str, name: str, kept: float | None, now: int) -> Stamp | None:
    """The stamp of a file in done/ or remove/ that is no longer listed, and whose receipts are forgotten.

    `kept`: for how long its queue lists done messages. None: it is needed, or is no message. FileNotFoundError.
    """
    parsed, repeated = layout.parse_flat(name), FIVE_MINUTES + 60_000
    if parsed is None:  # in remove/, MQ-Core's ids may be of any kind
        return Stamp(0, stamped=False) if folder == REMOVE and ":" in name else None
    _, uid = parsed
    if folder == DONE and layout.time_of(layout.order_of(uid)) + FIVE_MINUTES > now:
        return None  # put less than five minutes ago, so its receipt is still remembered
    path = tree.path(f"{folder}/{name}")
    stamp = tree.stamp_of(path, uid)
    if folder == REMOVE:
        was_settled = stamp.history is not None or stamp.settled_at is not None
        due = tree.until(path) + (repeated if was_settled else 0)
    else:
        due = NEVER if kept is None else tree.settled_at(path, stamp) + max(repeated, milliseconds(kept))
    return stamp if due <= now else None
