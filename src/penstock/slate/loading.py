"""From the records of a database to the queues they describe."""

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from penstock.contents import Frozen
from penstock.index.pages import IN_FLIGHT, Page, positions_in
from penstock.index.recent import SettledMinute
from penstock.index.streams import Batch, FrozenStreams, Stream, compact
from penstock.ledger import Ledger
from penstock.settings import FIVE_MINUTES, Settings
from penstock.slate import buckets, own, stream_records
from penstock.slate import format as records
from penstock.slate.binding import Database, Row
from penstock.slate.bodies import runs_of
from penstock.slate.entries import size_of
from penstock.slate.followed import Held, Marks, decode_held, decode_marks
from penstock.slate.format import BUCKET_BITS, VERSION, parse_key
from penstock.slate.lately import NotedReceipts
from penstock.slate.own import LARGE
from penstock.slate.primitives import key_u64
from penstock.stream_state import CONSUMER

_MINUTE = 60_000
_NEAR = 64  # entries of the log that a scan rather skips than begins again
PRIORITIES = (0, 255)  # what the document's u8 holds


class Loaded(NamedTuple):
    """A queue as it was found, and what its shelf must know."""

    ledger: Ledger
    receipts: NotedReceipts
    present: dict[int, frozenset[int]]
    recent: list[tuple[int, int]]
    published: dict[int, int]
    large: set[int]
    position: list[tuple[int, bool]]
    streams: dict[str, Stream]  # but for what they keep, before the pages are there
    held: dict[str, list[int]]  # messages that each of them holds
    followed: list[Marks]  # one, if it was followed
    held_back: dict[int, Held]  # for followers
    unmeasured: list[int]  # messages whose sizes only the log knows


class Contents(NamedTuple):
    """All that a database holds but the messages' bodies."""

    queues: dict[str, Loaded]
    seq_block: bytes | None
    at: int
    position: int
    log_gone: int | None  # the highest number that has left the log; None: nobody has looked
    leftovers: list[Row]  # of queues that were being deleted: what is still to be removed
    leftover_messages: list[int]


def of_kind(database: Database, kind: int) -> Iterator[tuple[bytes, bytes]]:
    """Every row of a type."""
    return database.scan(bytes((VERSION, kind)), bytes((VERSION, kind + 1)))


def load(database: Database) -> Contents:
    """Read the queues; Undecodable if there is anything that this version does not know."""
    known = ((1, records.SINK), (records.BATCHES, records.HELD_BACK))
    starts = [b"\x00", *[bytes((VERSION, last + 1)) for _, last in known]]
    ends = [*[bytes((VERSION, first)) for first, _ in known], b"\xff"]
    for start, end in zip(starts, ends, strict=True):
        for unknown, _ in database.scan(start, end):
            parse_key(unknown)
    clock = database.get(own.CLOCK_KEY)
    at = 0 if clock is None else own.decode_clock(clock)
    queues = {name: _new(name, settings) for name, settings in settings_of(database).items()}
    leftovers: list[Row] = []
    leftover_messages: list[int] = []
    _load_streams(database, queues, leftovers)
    for key, values in _buckets(database):
        name, number = key.queue, key.number
        found = queues.get(name)
        if found is None:
            leftovers += [(records.queue_key(kind, name, number), None) for kind in values]
            sizes = own.decode_sizes(values[records.SIZES]) if records.SIZES in values else []
            leftover_messages += [each.id for each in sizes if not each.flags & own.PUBLISHED]
        else:
            _take_bucket(found, number, values, at)
    _load_batches(database, queues, leftovers, leftover_messages)
    _load_recent(database, queues, leftovers, at)
    log_gone = _load_followed(database, queues, leftovers, leftover_messages)
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
    return Contents(queues, seq_block, at, position, log_gone, leftovers, leftover_messages)


def measure(contents: Contents, database: Database, log: str) -> None:
    """Find out the sizes of messages that are in no sizes record: published ones, of which the log knows."""
    wanted: dict[int, list[Ledger]] = {}
    for found in contents.queues.values():
        for seq in found.unmeasured:
            wanted.setdefault(seq, []).append(found.ledger)
    for seq, value in _log_entries(database, records.log_prefix(log), sorted(wanted)):
        for ledger in wanted.get(seq, ()):
            ledger.place(seq, (0,), (size_of(records.decode_metadata(value)) or 0,), (own.PUBLISHED,))


def _log_entries(database: Database, prefix: bytes, seqs: list[int]) -> Iterator[tuple[int, bytes]]:
    """Entries of the log, and some that lie between them; those that are gone are left out."""
    for run in runs_of(seqs, _NEAR):
        if len(run) == 1:  # a fraction of what a scan takes to begin
            value = database.get(prefix + key_u64(run[0]))
            yield from [] if value is None else [(run[0], value)]
        else:
            for key, value in database.scan(prefix + key_u64(run[0]), prefix + key_u64(run[-1] + 1)):
                yield int.from_bytes(key[-8:]), value


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
    return Loaded(ledger, receipts, {}, [], {}, set(), [], {}, {}, [], {}, [])


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
    found.present[number] = buckets.kinds_of(values)
    if thawed is None:
        return
    first, page, history = thawed
    keys = page.keys()
    for at, flags in enumerate(page.crc) if any(page.crc) else ():
        if page.state[at] and flags & own.PUBLISHED:
            found.published[number] = found.published.get(number, 0) | 1 << keys[at]
        if page.state[at] and flags & (LARGE | own.PUBLISHED) == LARGE:
            found.large.add(first + keys[at])
    if records.SIZES not in values:
        found.unmeasured.extend([first + keys[at] for at in positions_in(page.state, None)])
    _take_held(found, first, page)
    found.ledger.thaw_page(first, page)
    found.ledger.thaw(Frozen(0, [], found.receipts, [], history))


def _take_held(found: Loaded, first: int, page: Page) -> None:
    """Messages in flight without an end are those of streams' batches; of others the lease is over."""
    if page.claims is None:
        return
    claims = page.for_claims(len(page.state) - 1)
    for at, state in enumerate(page.state):
        if state == IN_FLIGHT and not claims.ends_at[at]:
            consumer = claims.consumer[at] or ""
            stream = found.streams.get(consumer.removeprefix(CONSUMER))
            if stream is not None and stream.held is not None and consumer.startswith(CONSUMER):
                found.held.setdefault(consumer.removeprefix(CONSUMER), []).append(first + at)
            else:
                claims.ends_at[at] = 1


def _load_streams(database: Database, queues: dict[str, Loaded], leftovers: list[Row]) -> None:
    """Who reads what, and how far they are."""
    for row, value in of_kind(database, records.BATCHES):
        name = parse_key(row).queue
        if name in queues:
            queues[name].ledger.thaw_streams(FrozenStreams(stream_records.decode_last_batch(value)))
        else:
            leftovers.append((row, None))
    for row, value in of_kind(database, records.STREAM):
        key = parse_key(row)
        if key.queue in queues:
            reader, settled, before, position, held = stream_records.decode_stream(value)
            batch = None if held is None else Batch(*held, ())
            queues[key.queue].streams[key.stream] = Stream(reader, batch, settled, before, position=position)
        else:
            leftovers.append((row, None))


def _load_batches(
    database: Database, queues: dict[str, Loaded], leftovers: list[Row], leftover_messages: list[int]
) -> None:
    """What streams hold and keep; the pages are there already."""
    for row, value in of_kind(database, records.FAILURES):
        _, name, _, _, of = parse_key(row)
        held = queues[name].streams[of].held if name in queues and of in queues[name].streams else None
        if held is None:
            leftovers.append((row, None))
        else:
            held.failures.update(stream_records.decode_failures(value))
    for found in queues.values():
        for name, seqs in found.held.items():
            held = found.streams[name].held
            if held is not None:
                held.seqs = compact(seqs)
        found.ledger.thaw_streams(FrozenStreams(found.ledger.last_batch, found.streams))
    for row, value in of_kind(database, records.KEPT):
        _, name, number, _, of = parse_key(row)
        page = buckets.decode_kept(value, CONSUMER + of)
        own_bodies = [at for at, state in enumerate(page.state) if state and not page.crc[at] & own.PUBLISHED]
        first = number << BUCKET_BITS
        if name in queues and of in queues[name].streams:
            queues[name].ledger.thaw_kept(of, first, page)
            queues[name].large.update([first + at for at in own_bodies if page.crc[at] & LARGE])
        else:
            leftovers.append((row, None))
            leftover_messages += [first + at for at in own_bodies]


def _load_followed(
    database: Database, queues: dict[str, Loaded], leftovers: list[Row], leftover_messages: list[int]
) -> int | None:
    """What is held back for followers; the highest number that has left the log."""
    log_gone = None
    for row, value in of_kind(database, records.FOLLOWED):
        name, marks = parse_key(row).queue, decode_marks(value)
        if name in queues:
            queues[name].followed.append(marks)
        elif not name:
            log_gone = marks.published
        else:
            leftovers.append((row, None))
    for row, value in of_kind(database, records.HELD_BACK):
        _, name, seq, *_ = parse_key(row)
        held = decode_held(value)
        if name in queues:
            queues[name].held_back[seq] = held
            if held.flags == LARGE:
                queues[name].large.add(seq)
        else:
            leftovers.append((row, None))
            if not held.flags & own.PUBLISHED:
                leftover_messages.append(seq)
    return log_gone


def _load_recent(database: Database, queues: dict[str, Loaded], leftovers: list[Row], now: int) -> None:
    """What was settled or put under a key within five minutes."""
    minutes: dict[str, list[tuple[int, list[own.Receipt]]]] = {}
    for row, value in of_kind(database, records.RECENT):
        _, name, number, *_ = parse_key(row)
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
