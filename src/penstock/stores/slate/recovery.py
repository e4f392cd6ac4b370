"""Recovery of a slate store: reads the queues from the records of the database when the store is opened."""

import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from sys import intern
from typing import NamedTuple
from urllib.parse import quote

from penstock.contract.names import is_legal
from penstock.contract.settings import FIVE_MINUTES, Settings
from penstock.errors import InvalidArgument
from penstock.rules.ledger import Ledger
from penstock.rules.recent import SettledMinute
from penstock.rules.rows import DONE, FAILED, IN_FLIGHT, Page, positions_in
from penstock.rules.state import StateSnapshot
from penstock.rules.streams import CONSUMER, Batch, Stream, StreamsSnapshot, compact
from penstock.stores.slate import extensions, pages
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import Database, Row
from penstock.stores.slate.bodies import numbered_rows
from penstock.stores.slate.entries import expires_at_of, group_of, is_published, size_of
from penstock.stores.slate.extensions import GROUPED, LARGE, Marks, Retained, decode_marks, decode_retained
from penstock.stores.slate.format import BUCKET_BITS, VERSION, Undecodable, key_u64, parse_key
from penstock.stores.slate.storage import NotedReceipts

_MINUTE = 60_000
_NEAR = 64  # a scan reads across gaps of up to so many log entries
PRIORITIES = (0, 255)  # the range of the document's u8
_OF_THE_LOG = (records.POSITION, records.FOLLOWED)  # under the empty name these records are about the log
_UNCONFIGURED = records.Config(None, 0, 0)
_ALWAYS = 253_402_300_800_000  # milliseconds: the year 10000; a later deadline counts as none


@dataclass
class Loaded:
    """A recovered queue, and the initial values of its SlateStorage."""

    ledger: Ledger
    present: dict[int, frozenset[int]] = field(default_factory=dict)
    recent: list[tuple[int, int]] = field(default_factory=list)
    published: dict[int, int] = field(default_factory=dict)
    large: set[int] = field(default_factory=set)
    position: tuple[int, bool] = (0, False)
    streams: dict[str, Stream] = field(default_factory=dict)  # without messages, until the pages are loaded
    held: dict[str, list[int]] = field(default_factory=dict)  # messages that each stream holds
    followed: Marks | None = None
    held_back: dict[int, Retained] = field(default_factory=dict)  # for followers
    grouped: bool = False  # whether a message ever had a group
    unmeasured: list[int] = field(default_factory=list)  # messages whose sizes are only in the log
    others: set[int] = field(default_factory=set)  # messages that another program listed under the document's key
    unsorted: set[int] = field(default_factory=set)  # buckets to write, as these messages belong there


@dataclass
class Contents:
    """The contents of a database without message bodies."""

    at: int
    is_recorded: bool  # whether there is an instance record
    seq_block: bytes | None
    queues: dict[str, Loaded] = field(default_factory=dict)
    highest: int = 0  # number of any message
    position: int = 0  # of all queues that are not held
    log_gone: int | None = None  # the highest number that has left the log; None: not recorded
    leftovers: list[Row] = field(default_factory=list)  # deletions, of records of deleted queues
    leftover_messages: list[int] = field(default_factory=list)
    strangers: set[str] = field(default_factory=set)  # another program's queues whose names are not legal here
    unconfigured: list[str] = field(default_factory=list)  # another program's queues without a config


def of_kind(database: Database, kind: int) -> Iterator[tuple[bytes, bytes]]:
    """All rows of a record type."""
    return database.scan(bytes((VERSION, kind)), bytes((VERSION, kind + 1)))


def check_instance(database: Database, log: str) -> bool:
    """Check that a database has the instance of this log, else InvalidArgument; whether the instance is recorded.

    Keys of queues, counters and payloads have no instance, so a database has one instance. Without a record, the
    keys of the log tell it. A database that was never written becomes the instance it is opened as.
    """
    value, asked = database.get(extensions.INSTANCE_KEY), records.instance_of(log)
    if value is not None:
        found = {extensions.decode_instance(value)}
    else:
        start = records.PAYLOADS + records.LOG_KEY.encode()
        first, last = next(database.scan(start, start + b"\xff"), None), database.last(start, start + b"\xff")
        keys = [] if first is None or last is None else [first[0], last]
        found = {records.instance_of(parse_key(key).queue) for key in keys}
    check_asked(asked, found)
    return value is not None


def check_asked(asked: str, found: Collection[str]) -> None:
    """Check that the requested instance is among those found in a database, if any is; InvalidArgument."""
    if found and asked not in found:
        name = min(found)
        whose = f"of the instance {name!r}" if name else "of no named instance"
        right = f"with ?instance={quote(name)}" if name else "without ?instance="
        raise InvalidArgument(
            f"instance={asked!r}: the queues of this database are {whose}, and a database has one instance: open "
            f"it {right}, and give another instance a folder or a prefix of its own"
        )


def load(database: Database, log: str) -> Contents:
    """Read the queues; Undecodable if there is a record that this version does not know."""
    is_recorded = check_instance(database, log)
    known = ((1, records.INSTANCE), (records.BATCHES, records.GROUPS))
    starts = [b"\x00", *[bytes((VERSION, last + 1)) for _, last in known]]
    ends = [*[bytes((VERSION, first)) for first, _ in known], b"\xff"]
    for start, end in zip(starts, ends, strict=True):
        for unknown, _ in database.scan(start, end):
            parse_key(unknown)
    clock = database.get(extensions.CLOCK_KEY)
    at = 0 if clock is None else extensions.decode_clock(clock)
    contents = Contents(at, is_recorded, database.get(records.SEQ_BLOCK_KEY))
    settings, made_here = _settings_of(database)
    contents.strangers.update(name for name in settings if not is_legal(name))
    queues = contents.queues
    queues.update((name, Loaded(new_ledger(name, each))) for name, each in settings.items() if is_legal(name))
    _load_streams(database, contents)
    _load_buckets(database, contents, log, is_recorded or made_here)
    _load_batches(database, contents, log)
    _load_recent(database, contents)
    _load_followed(database, contents)
    for _, _, found in _of_queues(database, contents, records.GROUPS):
        if found is not None:
            found.grouped = True
    position = None
    for key, value, found in _of_queues(database, contents, records.POSITION):
        if found is not None:
            found.position = extensions.decode_position(value)
        elif not key.queue:
            position = extensions.decode_position(value)[0]
    # Another program has routed the log up to the highest message that is in a queue or was claimed.
    offered = max((max(found.others) for found in queues.values() if found.others), default=0)
    contents.highest = max((found.ledger.state.next_seq - 1 for found in queues.values()), default=0)
    if position is None:
        offered = max(offered, contents.highest, _last_number(database, records.ALL_ATTEMPTS))
        contents.highest = max(contents.highest, _last_number(database, records.PAYLOADS))
    contents.position = max(position or 0, offered + 1 if offered else 0)
    return contents


def _of_queues(
    database: Database, contents: Contents, kind: int
) -> Iterator[tuple[records.Key, bytes, Loaded | None]]:
    """All rows of a record type with their queue; None, and a leftover, if the queue was deleted."""
    for row, value in of_kind(database, kind):
        key = parse_key(row)
        found = contents.queues.get(key.queue)
        if found is None and (key.queue or kind not in _OF_THE_LOG):
            contents.leftovers.append((row, None))
        yield key, value, found


def _last_number(database: Database, prefix: bytes) -> int:
    """The highest ID in keys that are a prefix and an ID."""
    last = database.last(prefix, prefix + key_u64(records.MAX_ID + 1))
    return 0 if last is None else int.from_bytes(last[-8:])


def has_others(contents: Contents) -> bool:
    """Whether another program has listed messages, which measure() then completes from the log."""
    return any(found.others for found in contents.queues.values())


class Adoption(NamedTuple):
    """What another program has added to the log."""

    moved: dict[bytes, bytes | None]  # rows that move entries to the numbers of their messages
    expiries: list[Row]  # expiry records of the entries
    last: int  # the highest number of the log


def adoption(database: Database, log: str) -> Adoption:
    """The entries that another program has logged since Penstock last wrote.

    The document numbers messages and log entries separately. Penstock finds an entry by its message's ID.
    """
    end, prefix = database.get(extensions.LOG_END_KEY), records.log_prefix(log)
    key = database.last(prefix, prefix + b"\xff" * 8)
    last = 0 if key is None else int.from_bytes(key[-8:])
    start = 0 if end is None else extensions.decode_log_end(end)
    moved: dict[bytes, bytes | None] = {}
    expiries: list[Row] = []
    if start > last:
        return Adoption(moved, expiries, last)
    for key, value in database.scan(prefix + key_u64(start), prefix + b"\xff" * 8):
        metadata = records.decode_metadata(value)
        if metadata.id > records.MAX_ID:
            raise Undecodable(f"message {metadata.id} in the log: Penstock knows those with IDs below 2^62")
        if metadata.id != int.from_bytes(key[-8:]):
            moved.setdefault(key, None)
            moved[prefix + key_u64(metadata.id)] = value
            last = max(last, metadata.id)
        if is_published(metadata) and size_of(metadata) is None and metadata.retention:
            expiries.append((extensions.expiry_key(expires_at_of(metadata) or 0, metadata.id), b""))
    return Adoption(moved, expiries, last)


def measure(contents: Contents, database: Database, log: str) -> None:
    """Complete queues from the log: sizes that are in no sizes record, and times of another program's messages."""
    wanted: dict[int, list[Loaded]] = {}
    for found in contents.queues.values():
        for seq in {*found.unmeasured, *found.others}:
            wanted.setdefault(seq, []).append(found)
    unsaid: list[int] = []
    for seq, value in numbered_rows(database, records.log_prefix(log), sorted(wanted), _NEAR):
        metadata = records.decode_metadata(value)
        if (size := size_of(metadata)) is None:
            unsaid.append(seq)
        for found in wanted[seq]:
            if size is not None:
                found.ledger.state.rows.place(seq, (0,), (size,), (extensions.PUBLISHED,))
            if seq in found.others:
                _take_times(found.ledger, metadata)
    # Another program's log entries have no sizes: their payloads do.
    for seq, value in numbered_rows(database, records.PAYLOADS, unsaid, _NEAR):
        for found in wanted[seq] if value[:1] == b"\x01" else ():
            found.ledger.state.rows.place(seq, (0,), (len(value) - 3,), (extensions.PUBLISHED,))


def _take_times(ledger: Ledger, metadata: records.Metadata) -> None:
    """Set the times of another program's message by its log entry."""
    page, at = ledger.state.rows.locate(metadata.id)
    deadline = page.expires_at[at]
    if metadata.retention:
        deadline = expires_at_of(metadata) or 0
    elif deadline <= metadata.received_at or deadline >= _ALWAYS:
        deadline = 0
    if deadline != page.expires_at[at]:
        ledger.state.expire(metadata.id, deadline)
    if page.state[at] in (IN_FLIGHT, DONE, FAILED):
        page.visible_at[at] = metadata.visible_at
        page.for_claims(at).nonce[at] = secrets.randbits(64)  # a receipt that no consumer has, or can guess


def settings_of(database: Database) -> dict[str, Settings]:
    """The settings of each queue with a legal name."""
    return {name: settings for name, settings in _settings_of(database)[0].items() if is_legal(name)}


def _settings_of(database: Database) -> tuple[dict[str, Settings], bool]:
    """The settings of each queue, whatever its name; whether Penstock created any of them."""
    ours = {parse_key(key).queue: value for key, value in of_kind(database, records.SETTINGS)}
    found = {}
    for key, value in of_kind(database, records.CONFIG):
        name = parse_key(key).queue
        if name in ours:
            found[name] = extensions.decode_settings(ours[name], records.decode_config(value))
        else:
            found[name] = extensions.settings_from(records.decode_others_config(value))
    return found, bool(ours)


def new_ledger(name: str, settings: Settings) -> Ledger:
    """The rules of a queue without messages; its state notes settled receipts for SlateStorage."""
    ledger = Ledger(name, settings, priorities=PRIORITIES)
    ledger.state.load(StateSnapshot(1, [], NotedReceipts(), [], {}))
    return ledger


def _buckets(database: Database) -> Iterator[tuple[records.Key, dict[int, bytes]]]:
    """The records of each bucket, queue by queue: the keys of all types are equal after the type."""

    def rows(kind: int) -> Iterator[tuple[bytes, int, bytes]]:
        for key, value in of_kind(database, kind):
            if key != records.SEQ_BLOCK_KEY:
                yield key[2:], kind, value

    for rest, group in groupby(merge(*map(rows, pages.KINDS)), key=lambda row: row[0]):
        yield parse_key(bytes((VERSION, records.ACTIVE)) + rest), {kind: value for _, kind, value in group}


def _spread(
    found: Iterator[tuple[records.Key, dict[int, bytes]]],
) -> Iterator[tuple[records.Key, dict[int, bytes], frozenset[int], set[int] | None]]:
    """Buckets in the same order, with another program's messages moved from the document's key to their buckets.

    Each comes with its record types in the database, and with the set of the other program's messages in the
    queue, if any of them is in the bucket.
    """
    queue, ids, split = "", set[int](), dict[int, dict[int, bytes]]()

    def until(number: int) -> Iterator[tuple[records.Key, dict[int, bytes], frozenset[int], set[int] | None]]:
        while split and (first := next(iter(split))) < number:
            yield records.Key(records.ACTIVE, queue, first), split.pop(first), pages.kinds_of(()), ids

    for key, values in found:
        if not key.number:
            yield from until(records.MAX_ID)
            queue, ids = key.queue, pages.of_others(values)
            split = pages.spread(values, ids) if ids else {}
            here = split.pop(0) if ids else values
            yield key, here, pages.kinds_of(values), ids or None
            continue
        yield from until(key.number if key.queue == queue else records.MAX_ID)
        others = split.pop(key.number, None)
        if others is None:
            yield key, values, pages.kinds_of(values), None
        else:
            yield key, pages.joined(values, others), pages.kinds_of(values), ids
    yield from until(records.MAX_ID)


def _load_buckets(database: Database, contents: Contents, log: str, is_ours: bool) -> None:
    """Load the messages of all queues. `is_ours`: a bucket without a config is left over from a deletion."""
    for key, values, stored, others in _spread(_buckets(database)):
        name, number = key.queue, key.number
        found = contents.queues.get(name)
        if found is None and not is_legal(name):
            contents.strangers.add(name)
            continue
        if found is None and not is_ours:
            contents.unconfigured.append(name)
            found = contents.queues[name] = Loaded(new_ledger(name, extensions.settings_from(_UNCONFIGURED)))
        if found is None:
            contents.leftovers += [(records.queue_key(kind, name, number), None) for kind in values]
            sizes = extensions.decode_sizes(values[records.SIZES]) if records.SIZES in values else []
            contents.leftover_messages += [each.id for each in sizes if not each.flags & extensions.PUBLISHED]
            continue
        _take_bucket(database, log, found, number, values, contents.at)
        if others is not None:
            found.unsorted.add(number)
            found.present[number] = stored
            if not number:
                found.others.update(others)


def _take_bucket(
    database: Database, log: str, found: Loaded, number: int, values: dict[int, bytes], at: int
) -> None:
    reloaded = pages.decode(number, values, at)
    found.present[number] = pages.kinds_of(values)
    if reloaded is None:
        return
    first, page, history = reloaded
    keys = page.keys()
    for at, flags in enumerate(page.crc) if any(page.crc) else ():
        if page.state[at] and flags & extensions.PUBLISHED:
            found.published[number] = found.published.get(number, 0) | 1 << keys[at]
        if page.state[at] and flags & (LARGE | extensions.PUBLISHED) == LARGE:
            found.large.add(first + keys[at])
    if records.SIZES not in values:
        found.unmeasured.extend([first + keys[at] for at in positions_in(page.state, None)])
    _take_groups(database, log, first, page)
    _take_held(found, first, page)
    found.ledger.state.load_page(first, page)
    found.ledger.state.load(StateSnapshot(0, [], found.ledger.state.receipts, [], history))


def _take_groups(database: Database, log: str, first: int, page: Page) -> None:
    """Set the groups of a page's messages, from their log entries: only messages with that flag have one."""
    keys = page.keys()
    grouped = {first + keys[at]: at for at, flags in enumerate(page.crc) if flags & GROUPED and page.state[at]}
    for seq, value in numbered_rows(database, records.log_prefix(log), sorted(grouped), _NEAR):
        group = group_of(records.decode_metadata(value))
        if group is not None:
            page.put_into([intern(group)], grouped[seq])


def _take_held(found: Loaded, first: int, page: Page) -> None:
    """Messages in flight without a deadline are in a stream's batch; if not, their lease is over."""
    if page.claims is None:
        return
    claims, keys = page.for_claims(len(page.state) - 1), page.keys()
    for at, state in enumerate(page.state):
        if state == IN_FLIGHT and not claims.ends_at[at]:
            consumer = claims.consumer[at] or ""
            stream = found.streams.get(consumer.removeprefix(CONSUMER))
            if stream is not None and stream.held is not None and consumer.startswith(CONSUMER):
                found.held.setdefault(consumer.removeprefix(CONSUMER), []).append(first + keys[at])
            else:
                claims.ends_at[at] = 1


def _load_streams(database: Database, contents: Contents) -> None:
    """Load the streams without their messages."""
    for _, value, found in _of_queues(database, contents, records.BATCHES):
        if found is not None:
            found.ledger.streams.load(StreamsSnapshot(extensions.decode_last_batch(value)))
    for key, value, found in _of_queues(database, contents, records.STREAM):
        if found is not None:
            reader, settled, before, position, held = extensions.decode_stream(value)
            batch = None if held is None else Batch(*held, ())
            found.streams[key.stream] = Stream(reader, batch, settled, before, position=position)


def _load_batches(database: Database, contents: Contents, log: str) -> None:
    """Load the messages that streams hold and keep; the pages are loaded already."""
    for key, value, found in _of_queues(database, contents, records.FAILURES):
        stream = None if found is None else found.streams.get(key.stream)
        if stream is not None and stream.held is not None:
            stream.held.failures.update(extensions.decode_failures(value))
        elif found is not None:
            contents.leftovers.append(
                (extensions.stream_key(records.FAILURES, key.queue, key.stream, key.number), None)
            )
    for each in contents.queues.values():
        for name, seqs in each.held.items():
            held = each.streams[name].held
            if held is not None:
                held.seqs = compact(seqs)
        each.ledger.streams.load(StreamsSnapshot(each.ledger.streams.last_batch, each.streams))
    for key, value, found in _of_queues(database, contents, records.KEPT):
        page, first = pages.decode_kept(value, CONSUMER + key.stream), key.number << BUCKET_BITS
        _take_groups(database, log, first, page)
        put_here = [at for at, state in enumerate(page.state) if state and not page.crc[at] & extensions.PUBLISHED]
        if found is not None and key.stream in found.streams:
            found.ledger.streams.load_kept(key.stream, first, page)
            found.large.update([first + at for at in put_here if page.crc[at] & LARGE])
            continue
        if found is not None:
            contents.leftovers.append(
                (extensions.stream_key(records.KEPT, key.queue, key.stream, key.number), None)
            )
        contents.leftover_messages += [first + at for at in put_here]


def _load_followed(database: Database, contents: Contents) -> None:
    """Load the messages held back for followers, and the highest number that has left the log."""
    for key, value, found in _of_queues(database, contents, records.FOLLOWED):
        marks = decode_marks(value)
        if found is not None:
            found.followed = marks
        elif not key.queue:
            contents.log_gone = marks.published
    for key, value, found in _of_queues(database, contents, records.HELD_BACK):
        held = decode_retained(value)
        if found is not None:
            found.held_back[key.number] = held
            if held.flags == LARGE:
                found.large.add(key.number)
        elif not held.flags & extensions.PUBLISHED:
            contents.leftover_messages.append(key.number)


def _load_recent(database: Database, contents: Contents) -> None:
    """Load the receipts settled and the keys used within five minutes."""
    minutes: dict[str, list[tuple[int, list[extensions.Receipt]]]] = {}
    for key, value, found in _of_queues(database, contents, records.RECENT):
        if found is None:
            continue
        at, receipts, keys = extensions.decode_recent(value)
        found.recent.append((key.number, at))
        if receipts:
            recent = minutes.setdefault(key.queue, [])
            if not recent or at >= recent[-1][0] + _MINUTE:
                recent.append((at, []))
            recent[-1][1].extend(receipts)
        end = at + FIVE_MINUTES
        if keys and end > contents.at:
            ended = [(end, name, seq) for seq, name in keys]
            found.ledger.state.load(StateSnapshot(0, [], found.ledger.state.receipts, ended, {}))
    for queue, recent in minutes.items():
        for began, receipts in recent:
            seqs, nonces, outcomes = zip(*receipts, strict=True)
            contents.queues[queue].ledger.state.receipts.load(SettledMinute(began, seqs, nonces, bytes(outcomes)))
