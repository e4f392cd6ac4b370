"""The names in a folder store: what lies where. Pure functions.

    new/QUEUE:ID        being put
    queues/QUEUE/ID     available; nothing but messages lies here
    delay/QUEUE:ID      delayed or in flight, until the time of its last change
    done/QUEUE:ID       acknowledged
    failed/QUEUE:ID     failed for good
    remove/QUEUE:ID     removed, waiting for the reaper
    .penstock/          ours:
      settings/QUEUE    a queue's name and settings
      held/PROCESS/     messages that a process is just changing; nobody else touches them
      batches/ID        which messages of a put_many belong together
      keys/QUEUE        idempotency keys of the last five minutes
      locks/QUEUE       held while messages are admitted to a queue with max_size, or under a key
      long/ID           what is too long for an attribute
      kept/QUEUE        a second copy of a queue's settings: who deletes the first is told
      damaged/QUEUE:ID  messages whose content or attributes are not what was put; nobody is given them

QUEUE is the queue's name, with `%` and two digits for odd characters, so that it has neither `:` nor `/`. ID is
a UUID of version 1, whose time is that of the put: sorted by it, messages are in the order of their arrival.
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
MQ_CORE = (NEW, QUEUES, DELAY, REMOVE)  # its folders
SEEN = (NEW, QUEUES, DELAY, DONE, FAILED, REMOVE)  # where people and other programs look
FOLDERS = (OWN, *SEEN, SETTINGS, HELD, BATCHES, KEYS, LOCKS, LONG, KEPT, DAMAGED)

ABANDONED = "abandoned"  # a file in a private folder whose process holds nothing any more
PROBE = "probe"  # another, by which a process finds out what the file system can do
_LEASE = "lease"  # says where a held message was: in delay/, and in flight
LONGEST = 180  # bytes of a queue's file name: an id, and where a message comes from, must fit behind it
_EPOCH = 122_192_928_000_000_000  # from 1582, where the time of a UUID starts, to 1970, in ticks
_TICKS = 10_000  # of 100 ns in a millisecond
LONG_AHEAD = 86_400_000 * _TICKS  # of an order: a day. Further, a clock was wrong, or it is nobody's
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_HELD = re.compile(r"([a-z]+)\.([0-9a-f]+)\.([0-9a-f]+):([^:]+):(.+)", re.ASCII)


class Held(NamedTuple):
    """What the name of a held message says: where it was, and until when it was to stay there."""

    origin: str
    until: int  # milliseconds; 0 outside of delay/
    taken: int  # a place in the order of everything: of two private names of one file the later one counts
    queue: str
    uid: str
    leased: bool  # whether it was in flight


def is_file_of(file: str, name: str) -> bool:
    """Whether a queue of that name may have that file name."""
    encoded = names.file_name(name)
    return file in (encoded, name) or re.fullmatch(re.escape(encoded[:150]) + r"%_\d+", file) is not None


def queue_name(file: str) -> str | None:
    """The queue that someone meant who made a folder by hand; None if it cannot be one."""
    for name in (unquote(file), file):  # `my.queue` is how another program would name it
        try:
            encoded = names.file_name(names.checked(name))
        except ValueError:
            continue
        if encoded == file or (name == file and ":" not in file and len(file) <= LONGEST):
            return name
    return None


def message_path(folder: str, queue: str, uid: str) -> str:
    """Where a message lies, from the store's folder on."""
    return f"{QUEUES}/{queue}/{uid}" if folder == QUEUES else f"{folder}/{queue}:{uid}"


def parse_flat(name: str) -> tuple[str, str] | None:
    """Queue and id of a file in one of the folders that all queues share; None if the file is no message."""
    queue, colon, message = name.partition(":")
    return (queue, message) if colon and queue and is_id(message) else None


def held_name(origin: str, until: int, taken: int, queue: str, uid: str, leased: bool = False) -> str:
    """The private name of a message."""
    return f"{_LEASE if leased else origin}.{max(until, 0):x}.{taken:x}:{queue}:{uid}"


def parse_held(name: str) -> Held | None:
    """What a private name says."""
    matched = _HELD.fullmatch(name)
    if matched is None or not is_id(matched[5]):
        return None
    leased = matched[1] == _LEASE
    origin = DELAY if leased else matched[1]
    if origin not in SEEN:
        return None
    return Held(origin, int(matched[2], 16), int(matched[3], 16), matched[4], matched[5], leased)


def is_id(text: str) -> bool:
    """Whether this is an id as this store makes them."""
    return _ID.fullmatch(text) is not None


def is_foreign(name: str) -> bool:
    """Whether a file in a queue was put there by hand. A name that starts with a dot is not yet a message."""
    return not name.startswith(".") and not is_id(name)


def order_of(uid: str) -> int:
    """The place of a message in the order of arrival, by its id."""
    return int(uid[15:18] + uid[9:13] + uid[:8], 16)  # what uuid.UUID(uid).time is, for a million of them


def time_of(order: int) -> int:
    """When that was, in milliseconds since the epoch."""
    return (order - _EPOCH) // _TICKS


def first_order(now: int) -> int:
    """The first place that a message can have that arrives now."""
    return max(0, now * _TICKS + _EPOCH)


def node_of(process: str) -> int:
    """The node of a process for its ids: a hash, with the bit that says it is no network card."""
    return int.from_bytes(hashlib.sha256(process.encode()).digest()[:6], "big") | 1 << 40


def is_made_here(uid: str) -> bool:
    """Whether an id may be one of a process that uses this store: those of network cards are not."""
    return bool(maker_of(uid) >> 40 & 1)


def maker_of(uid: str) -> int:
    """The node of the process that made an id."""
    return uuid.UUID(uid).node


def make_id(order: int, sequence: int, node: int) -> str:
    """A UUID of version 1."""
    digits = f"{order:015x}"
    return f"{digits[7:]}-{digits[3:7]}-1{digits[:3]}-{0x8000 | sequence:04x}-{node:012x}"
