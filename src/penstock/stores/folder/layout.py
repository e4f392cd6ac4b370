"""File names in a folder store: folders, message ids, private names. Pure functions.

    new/QUEUE:ID        being put
    queues/QUEUE/ID     available; only messages are in here
    delay/QUEUE:ID      delayed or in flight, until the time of its last change
    done/QUEUE:ID       acknowledged
    failed/QUEUE:ID     failed for good
    remove/QUEUE:ID     removed, waiting for the reaper
    .penstock/          Penstock's own files:
      settings/QUEUE    a queue's name and settings
      held/PROCESS/     the private folder of a process: messages that it is moving, which no other touches
      batches/ID        the manifest of a put_many: the messages that belong together
      keys/QUEUE        idempotency keys of the last five minutes
      locks/QUEUE       locked by a put into a queue with max_size, or with a key
      locks/QUEUE:groups  locked by a claim, if the queue has had groups
      long/ID           values that are too long for an attribute
      kept/QUEUE        a second copy of a queue's settings: tells a lost settings file from a deleted queue
      damaged/QUEUE:ID  quarantine: messages whose content or attributes are not what was put

QUEUE is the queue's name, percent-encoded, so that it has neither `:` nor `/`. ID is a UUID of version 1, whose
time is that of the put: sorted by it, messages are in the order of their arrival.
"""

import hashlib
import re
import uuid
from typing import NamedTuple
from urllib.parse import unquote

from penstock.contract import names

NEW, QUEUES, DELAY, DONE, FAILED, REMOVE = "new", "queues", "delay", "done", "failed", "remove"
OWN = ".penstock"
SETTINGS, HELD, BATCHES, KEYS, LOCKS, LONG, KEPT, DAMAGED = (
    f"{OWN}/{name}" for name in ("settings", "held", "batches", "keys", "locks", "long", "kept", "damaged")
)
MQ_CORE = (NEW, QUEUES, DELAY, REMOVE)  # the folders of MQ-Core
SEEN = (NEW, QUEUES, DELAY, DONE, FAILED, REMOVE)  # the folders for people and other programs
FOLDERS = (OWN, *SEEN, SETTINGS, HELD, BATCHES, KEYS, LOCKS, LONG, KEPT, DAMAGED)

FILE_HEADER = "file"  # has the name of a file that a person put into a queue
ABANDONED = "abandoned"  # marks a private folder whose messages its process has given up
PROBE = "probe"  # a file that tests what the file system can do
_LEASE = "lease"  # in a private name: the message was in delay/, in flight
_LETTER = "letter"  # the message was in failed/ and goes back there, where one of a redrive would not
MOVE = "move"  # in a private name: the message is on its way to another queue, and does not come back (moves.py)
LONGEST = 180  # bytes of a queue's file name: a private name adds an id and the message's origin
_EPOCH = 122_192_928_000_000_000  # from 1582, where the time of a UUID starts, to 1970, in ticks
_TICKS = 10_000  # of 100 ns in a millisecond
LONG_AHEAD = 86_400_000 * _TICKS  # a day; ids further in the future are not followed
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_HELD = re.compile(r"([a-z]+)\.([0-9a-f]+)\.([0-9a-f]+):([^:]+):(.+)", re.ASCII)


class Held(NamedTuple):
    """A parsed private name: the message, and the folder that it was taken from."""

    origin: str  # or MOVE
    until: int  # the end of its time in delay/, in milliseconds; 0 in other folders
    taken: int  # when it was taken, as an order: of two private names of one file the later one is true
    queue: str
    uid: str
    leased: bool  # whether it was in flight
    redriven: bool  # whether it was taken out of failed/ for a redrive

    @property
    def waits(self) -> bool:
        """Whether it may be back among the messages that are delayed, available or in flight."""
        return self.redriven or self.origin in (QUEUES, DELAY)


def is_file_of(file: str, name: str) -> bool:
    """Whether a queue of that name may have that file name."""
    encoded = names.file_name(name)
    return file in (encoded, name) or re.fullmatch(re.escape(encoded[:150]) + r"%_\d+", file) is not None


def queue_name(file: str) -> str | None:
    """The name of the queue in a folder that a person made; None if no queue can have that folder."""
    for name in (unquote(file), file):  # the second for `my.queue`, which other programs do not encode
        try:
            encoded = names.file_name(names.checked(name))
        except ValueError:
            continue
        if encoded == file or (name == file and ":" not in file and len(file) <= LONGEST):
            return name
    return None


def message_path(folder: str, queue: str, uid: str) -> str:
    """The path of a message, relative to the store's folder."""
    return f"{QUEUES}/{queue}/{uid}" if folder == QUEUES else f"{folder}/{queue}:{uid}"


def parse_flat(name: str) -> tuple[str, str] | None:
    """Queue and id of a file in one of the folders that all queues share; None if the file is no message."""
    queue, colon, message = name.partition(":")
    return (queue, message) if colon and queue and is_id(message) else None


def held_name(
    origin: str, until: int, taken: int, queue: str, uid: str, leased: bool = False, redriven: bool = True
) -> str:
    """The private name of a message that was taken from a folder."""
    kind = _LEASE if leased else origin if redriven or origin != FAILED else _LETTER
    return f"{kind}.{max(until, 0):x}.{taken:x}:{queue}:{uid}"


def parse_held(name: str) -> Held | None:
    """Parse a private name; None if it is not one."""
    matched = _HELD.fullmatch(name)
    if matched is None or not is_id(matched[5]):
        return None
    kind = matched[1]
    origin = {_LEASE: DELAY, _LETTER: FAILED}.get(kind, kind)
    if origin not in (*SEEN, MOVE):
        return None
    until, taken = int(matched[2], 16), int(matched[3], 16)
    return Held(origin, until, taken, matched[4], matched[5], kind == _LEASE, kind == FAILED)


def is_id(text: str) -> bool:
    """Whether a text is a UUID of version 1."""
    return _ID.fullmatch(text) is not None


def is_foreign(name: str) -> bool:
    """Whether a person or another program put a file into a queue. A name with a dot in front is not a message."""
    return not name.startswith(".") and not is_id(name)


def order_of(uid: str) -> int:
    """A message's position in the order of arrival: the time of its id."""
    return int(uid[15:18] + uid[9:13] + uid[:8], 16)  # uuid.UUID(uid).time, but quick enough for a million


def time_of(order: int) -> int:
    """The time of an order, in milliseconds since the epoch."""
    return (order - _EPOCH) // _TICKS


def first_order(now: int) -> int:
    """The lowest order of messages that arrive at a time."""
    return max(0, now * _TICKS + _EPOCH)


def node_of(process: str) -> int:
    """The node in a process's ids: a hash of its name, with the multicast bit that no network card has."""
    return int.from_bytes(hashlib.sha256(process.encode()).digest()[:6], "big") | 1 << 40


def is_made_here(uid: str) -> bool:
    """Whether a Penstock process may have made an id: its node is not a network card's."""
    return bool(maker_of(uid) >> 40 & 1)


def maker_of(uid: str) -> int:
    """The node of the process that made an id."""
    return uuid.UUID(uid).node


def make_id(order: int, sequence: int, node: int) -> str:
    """A UUID of version 1."""
    digits = f"{order:015x}"
    return f"{digits[7:]}-{digits[3:7]}-1{digits[:3]}-{0x8000 | sequence:04x}-{node:012x}"
