"""From the records of a database to the queues they describe."""

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from penstock.contents import Frozen
from penstock.index.recent import SettledMinute
from penstock.ledger import Ledger
from penstock.settings import FIVE_MINUTES, Settings
from penstock.slate import buckets, own
from penstock.slate import format as records
from penstock.slate.binding import Database, Row
from penstock.slate.format import BUCKET_BITS, VERSION, parse_key
from penstock.slate.shelf import LARGE, NotedReceipts

_MINUTE = 60_000
PRIORITIES = (0, 255)  # what the document's u8 holds


class Loaded(NamedTuple):
    """A queue as it was found, and what its shelf must know."""

    ledger: Ledger
    receipts: NotedReceipts
    present: dict[int, set[int]]
    recent: list[tuple[int, int]]
    published: dict[int, int]
    large: set[int]
    position: list[tuple[int, bool]]


class Contents(NamedTuple):
    """All that a database holds but the messages' bodies."""

    queues: dict[str, Loaded]
    seq_block: bytes | None
    at: int
    position: int
    leftovers: list[Row]  # of queues that were being deleted: what is still to be removed
    leftover_messages: list[int]


def of_kind(database: Database, kind: int) -> Iterator[tuple[bytes, bytes]]:
    """Every row of a type."""
    return database.scan(bytes((VERSION, kind)), bytes((VERSION, kind + 1)))


def load(database: Database) -> Contents:
    """Read the queues; Undecodable if there is anything that this version does not know."""
    for start, end in ((b"\x00", bytes((VERSION, 1))), (bytes((VERSION, records.CLOCK + 1)), b"\xff")):
        for unknown, _ in database.scan(start, end):
            parse_key(unknown)
    clock = database.get(own.CLOCK_KEY)
    at = 0 if clock is None else own.decode_clock(clock)
    queues = {name: _new(name, settings) for name, settings in settings_of(database).items()}
    leftovers: list[Row] = []
    leftover_messages: list[int] = []
    for key, values in _buckets(database):
        name, number = key.queue, key.number
        found = queues.get(name)
        if found is None:
            leftovers += [(records.queue_key(kind, name, number), None) for kind in values]
            sizes = own.decode_sizes(values[records.SIZES]) if records.SIZES in values else []
            leftover_messages += [each.id for each in sizes if not each.flags & own.PUBLISHED]
        else:
            _take_bucket(found, number, values, at)
    _load_recent(database, queues, leftovers, at)
    seq_block = database.get(records.SEQ_BLOCK_KEY)
    # Without a position of ours another program has looked after the queues, up to its end.
    position = sum(records.decode_seq_block(seq_block)) if seq_block is not None else 0
    for row, value in of_kind(database, records.POSITION):
        name = parse_key(row).queue
        if name in queues:
            queues[name].position.append(own.decode_position(value))
        elif not name:
            position = own.decode_position(value)[0]
        else:
            leftovers.append((row, None))
    return Contents(queues, seq_block, at, position, leftovers, leftover_messages)


def settings_of(database: Database) -> dict[str, Settings]:
    """The queues, with what they were made with."""
    ours = {parse_key(key).queue: value for key, value in of_kind(database, records.SETTINGS)}
    found = {}
    for key, value in of_kind(database, records.CONFIG):
        name, config = parse_key(key).queue, records.decode_config(value)
        found[name] = own.decode_settings(ours[name], config) if name in ours else own.settings_from(config)
    return found


def _new(name: str, settings: Settings) -> Loaded:
    receipts = NotedReceipts()
    ledger = new_ledger(name, settings, receipts)
    return Loaded(ledger, receipts, {}, [], {}, set(), [])


def new_ledger(name: str, settings: Settings, receipts: NotedReceipts) -> Ledger:
    """A queue without messages."""
    ledger = Ledger(name, settings, priorities=PRIORITIES)
    ledger.thaw(Frozen(1, [], receipts, [], {}))
    return ledger


def _buckets(database: Database) -> Iterator[tuple[records.Key, dict[int, bytes]]]:
    """The records of each bucket, queue by queue: in the keys of all types the same follows the type."""

    def rows(kind: int) -> Iterator[tuple[bytes, int, bytes]]:
        for key, value in of_kind(database, kind):
            if key != records.SEQ_BLOCK_KEY:
                yield key[2:], kind, value

    for rest, group in groupby(merge(*map(rows, buckets.KINDS)), key=lambda row: row[0]):
        yield parse_key(bytes((VERSION, records.ACTIVE)) + rest), {kind: value for _, kind, value in group}


def _take_bucket(found: Loaded, number: int, values: dict[int, bytes], at: int) -> None:
    thawed = buckets.decode(number, values, at)
    found.present[number] = set(values)
    if thawed is None:
        return
    first, page, history = thawed
    for position, flags in enumerate(page.crc) if any(page.crc) else ():
        if page.state[position] and flags & own.PUBLISHED:
            found.published[number] = found.published.get(number, 0) | 1 << position
        if page.state[position] and flags & (LARGE | own.PUBLISHED) == LARGE:
            found.large.add((number << BUCKET_BITS) + position)
    found.ledger.thaw_page(first, page)
    found.ledger.thaw(Frozen(0, [], found.receipts, [], history))


def _load_recent(database: Database, queues: dict[str, Loaded], leftovers: list[Row], now: int) -> None:
    """What was settled or put under a key within five minutes."""
    minutes: dict[str, list[tuple[int, list[own.Receipt]]]] = {}
    for row, value in of_kind(database, records.RECENT):
        _, name, number, _ = parse_key(row)
        if name not in queues:
            leftovers.append((row, None))
            continue
        found, (at, receipts, keys) = queues[name], own.decode_recent(value)
        found.recent.append((number, at))
        if receipts:
            lately = minutes.setdefault(name, [])
            if not lately or at >= lately[-1][0] + _MINUTE:
                lately.append((at, []))
            lately[-1][1].extend(receipts)
        end = at + FIVE_MINUTES
        if keys and end > now:
            found.ledger.thaw(Frozen(0, [], found.receipts, [(end, key, seq) for seq, key in keys], {}))
    for name, lately in minutes.items():
        for began, receipts in lately:
            seqs, nonces, outcomes = zip(*receipts, strict=True)
            queues[name].receipts.load(SettledMinute(began, seqs, nonces, bytes(outcomes)))
