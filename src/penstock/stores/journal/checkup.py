"""The findings about one journal."""

import os
import shlex
from collections.abc import Iterator

from penstock.contract.examination import Finding, QueueExamination
from penstock.rules.contents import Frozen
from penstock.rules.index.rows import IN_FLIGHT, Page
from penstock.rules.ledger import Ledger
from penstock.rules.state import State
from penstock.stores.journal import adoption, bodies, groups, snapshot
from penstock.stores.journal.files import PLACE_BITS, Segment, offset_of
from penstock.stores.journal.images import encode_rest
from penstock.stores.journal.reading import Damage, Found, Reading, covers, left_of, read
from penstock.stores.journal.snapshot import Snapshot
from penstock.stores.journal.stream_records import encode_streams
from penstock.system.files import Disk

_WORTH_PACKING = 1 << 20
_SHOWN = 20  # ids of damaged messages that are named
_SECOND = 1_000


def check(journal: Found, index_path: str, disk: Disk, now: int, holder: str | None) -> QueueExamination:
    """Examine one journal. `now` is the clock's; `holder` says who may be writing to it."""
    found = QueueExamination(journal.name, journal.file, len(journal.segments))
    found.bytes = sum(segment.size for segment in journal.segments)
    index = snapshot.read(disk, index_path)
    holds = index is not None and index.holds(journal.segments)
    if disk.exists(index_path) and not holds:
        found.findings.append(_stale_index(index, index_path))
    reading = read(journal)
    found.groups = reading.loader.count
    damage = reading.damage
    if damage is not None and index is not None and holds and covers(index, damage):
        reading = read(journal, index)  # as opening does
    if reading.damage is not None:
        found.findings.append(_damage(journal, reading, reading.damage))
        found.counts = reading.ledger.counts()
        return found
    found.findings += _torn(reading, holder)
    found.findings += _behind(reading, now)
    _check_messages(journal, reading, damage, max(now, reading.loader.at), found)
    if found.sound:
        found.findings.insert(0, _all_whole(found))
    return found


def _check_messages(
    journal: Found, reading: Reading, damage: Damage | None, now: int, found: QueueExamination
) -> None:
    """Look at the messages that the store will have; damage is what the snapshot hides from it."""
    ledger = reading.ledger
    found.findings += _times(ledger, now)
    ledger.advance(now)
    frozen = ledger.freeze()
    damaged = dict(damaged_bodies(frozen, journal.segments))
    if damage is not None:
        found.findings.append(_indexed_damage(journal, damage, damaged))
    elif damaged:
        found.findings.append(_damaged_bodies(journal, damaged))
    if reading.foreign or reading.unreadable:
        found.findings += _adopt(reading, now)
    elif journal.segments:
        found.packing_frees = max(0, found.bytes - packed_size(frozen, reading.loader.next_group))
        found.findings += _worth_packing(found)
    found.counts = reading.ledger.counts()


def damaged_bodies(frozen: Frozen, segments: list[Segment]) -> Iterator[tuple[int, tuple[str, int]]]:
    """The messages whose bodies do not have their checksum, each with the file and the offset."""
    known = {segment.number: segment for segment in segments}
    for first, page in frozen.pages:
        keys = page.keys()
        for row, state in enumerate(page.state):
            if not state:
                continue
            segment, offset = known[page.place[row] >> PLACE_BITS], offset_of(page.place[row])
            if not _is_whole(segment, offset, page, row):
                yield first + keys[row], (segment.file.path, offset)


def _is_whole(segment: Segment, offset: int, page: Page, row: int) -> bool:
    try:
        return bodies.checksum(segment.file.read(offset, page.size[row])) == page.crc[row]
    except OSError:
        return False


def packed_size(frozen: Frozen, next_group: int) -> int:
    """About how many bytes a packed file needs."""
    streams = encode_streams(frozen.streams)
    if not (frozen.pages or frozen.receipts or frozen.keys or streams):
        return 0
    kept = [each for stream in frozen.streams.streams.values() for each in stream.kept.pages()]
    pages = [*frozen.pages, *kept]
    stored = sum(sum(page.size) + 4 * page.live for _, page in pages)  # ADD_XID has an xid that ADDX has not
    rows = sum(len(snapshot.encode_rows(first, page)) + groups.OVERHEAD for first, page in pages)
    # Checksums that are all the same, which is one number, differ by their xids then.
    rows += sum(4 * page.live for _, page in pages if len(set(page.crc)) == 1)
    named = groups.OVERHEAD + len(streams) if streams else 0
    return stored + rows + named + groups.OVERHEAD + len(encode_rest(frozen, next_group))


def _all_whole(found: QueueExamination) -> Finding:
    counted = sum(found.counts.values())
    return Finding("ok", f"{_plural(found.groups, 'group')} and {_plural(counted, 'message')}, all of them whole")


def _damage(journal: Found, reading: Reading, damage: Damage) -> Finding:
    before, after = left_of(journal.segments, reading, damage)
    text = (
        f"{damage.why}. Opening is refused (StoreCorrupt) and changes nothing. "
        f"{_plural(before, 'message')} can be saved from before that place, {after:,} from after it"
    )
    if damage.position == len(journal.segments):
        return Finding("problem", text, "put back the right files from a copy")
    path = journal.segments[damage.position].file.path
    advice = f"put {os.path.basename(path)} back from a copy"
    if before:
        later = [os.path.basename(each.file.path) for each in journal.segments[damage.position + 1 :]]
        move = f", move {', '.join(later)} elsewhere" if later else ""
        advice += (
            f"; without one, save a copy of the folder, then `truncate -s {damage.offset} "
            f"{os.path.basename(path)}`{move} and remove .penstock/clean: the store opens with what was before"
        )
    return Finding("problem", text, advice, path, damage.offset)


def _indexed_damage(journal: Found, damage: Damage, damaged: dict[int, tuple[str, int]]) -> Finding:
    text = f"{damage.why}. The store opens all the same, as the snapshot of the queue's index stands for that part"
    path, offset = journal.segments[damage.position].file.path, damage.offset
    pack = f"`penstock pack {_word(journal.name)}` writes the journal anew"
    if not damaged:
        return Finding("problem", f"{text}; no message is damaged", pack, path, offset)
    return Finding(
        "problem",
        f"{text}. {_named(damaged)} cannot be read any more",
        f"put {os.path.basename(path)} back from a copy; without one, `penstock remove {_word(journal.name)} "
        f"{' '.join(_ids(damaged))}`, then {pack}",
        path,
        offset,
    )


def _damaged_bodies(journal: Found, damaged: dict[int, tuple[str, int]]) -> Finding:
    path, offset = next(iter(damaged.values()))
    return Finding(
        "problem",
        f"{_named(damaged)} cannot be read: the checksum of the body is wrong",
        f"put {os.path.basename(path)} back from a copy, or `penstock remove {_word(journal.name)} "
        f"{' '.join(_ids(damaged))}`",
        path,
        offset,
    )


def _torn(reading: Reading, holder: str | None) -> Iterator[Finding]:
    if reading.torn is None:
        return
    segment, rest = reading.torn
    path, count = segment.file.path, len(rest.data.rstrip(b"\x01"))
    text = f"{os.path.basename(path)} ends with {_plural(count, 'byte')} that are no whole group"
    if holder is not None:
        yield Finding("note", f"{text}: the store is open, and may just write there", "", path, rest.offset)
        return
    yield Finding(
        "note",
        f"{text}: a crash interrupted a write that no one was told had succeeded, or the very last group is "
        "damaged, which looks the same",
        "nothing: opening moves them to .penstock/quarantine",
        path,
        rest.offset,
    )


def _adopt(reading: Reading, now: int) -> Iterator[Finding]:
    """What opening makes of another program's entries; afterwards the ledger is as opening leaves it."""
    for segment, offset in reading.unreadable:
        path = segment.file.path
        yield Finding(
            "problem",
            f"{os.path.basename(path)}, which another program wrote, cannot be read from offset {offset} on. "
            f"Opening keeps what is before and moves the other {_plural(segment.size - offset, 'byte')} to "
            ".penstock/quarantine",
            "put it back from a copy, or, if a Kestrel 2.x wrote it, open the store with dialect='2.x'",
            path,
            offset,
        )
    if not reading.foreign:
        return
    ledger = reading.ledger
    before = ledger.size()
    brought = len(adoption.replay_entries(ledger, reading.foreign, now))
    taken = before + brought - ledger.size()
    reading.ledger = _thawed(ledger)  # as opening, which reads what it has written
    reading.ledger.advance(now)
    took = f" and took {_plural(taken, 'message')} of ours" if taken else ""
    yield Finding(
        "note",
        f"another program, as Kestrel, wrote {_plural(len(reading.foreign), 'entry', 'entries')}, which brought "
        f"{_plural(brought, 'message')}{took}",
        "nothing: opening makes them ours, in a file that Kestrel can still read; copy the folder first if it "
        "must stay as it is",
    )


def _thawed(state: Ledger) -> Ledger:
    frozen, thawed = state.freeze(), Ledger(state.name, state.settings)
    for first, page in frozen.pages:
        thawed.thaw_page(first, page)
    thawed.thaw_streams(frozen.streams)
    thawed.thaw(frozen)
    return thawed


def _times(ledger: State, now: int) -> Iterator[Finding]:
    """What time alone has brought about since the last record."""
    ended = expired = 0
    for seq in ledger.listed(None, 0, ledger.size()):
        page, at = ledger.locate(seq)
        in_flight = page.state[at] == IN_FLIGHT
        if in_flight and not page.for_claims(at).ends_at[at]:
            continue  # a stream holds it, whatever the time
        if 0 < page.expires_at[at] <= now:
            expired += 1
        elif in_flight and page.for_claims(at).ends_at[at] <= now:
            ended += 1
    if ended:
        yield Finding(
            "note",
            f"the leases of {_plural(ended, 'message')} ended without an ack",
            "nothing: each is available again, or failed if that was its last attempt; a consumer may have died, "
            "or need a longer lease",
        )
    if expired:
        yield Finding(
            "note", f"{_plural(expired, 'message')} expired", "nothing: packing takes them out of the files"
        )


def _behind(reading: Reading, now: int) -> Iterator[Finding]:
    ahead = reading.loader.at - now
    if ahead > _SECOND:
        yield Finding(
            "note",
            f"the journal's latest time is {ahead // _SECOND:,} s ahead of the clock, and the store's time goes "
            "on from there",
            "look at the machine's clock",
        )


def _stale_index(index: Snapshot | None, path: str) -> Finding:
    why = "is not whole" if index is None else "is of another time than the journal"
    return Finding(
        "note",
        f"the snapshot of the queue's index {why}",
        "nothing: opening reads the journal itself, which takes longer, and closing writes a new one",
        path,
    )


def _worth_packing(found: QueueExamination) -> Iterator[Finding]:
    if found.packing_frees >= max(_WORTH_PACKING, found.bytes // 2):
        yield Finding(
            "note",
            f"packing would free about {found.packing_frees:,} of {found.bytes:,} bytes",
            f"nothing: the store packs by itself when it is worth it; `penstock pack {_word(found.name)}` does it "
            "now",
        )


def _named(damaged: dict[int, tuple[str, int]]) -> str:
    return f"{_plural(len(damaged), 'message')} ({', '.join(_ids(damaged))})"


def _ids(damaged: dict[int, tuple[str, int]]) -> list[str]:
    return [*map(str, list(damaged)[:_SHOWN]), *(["..."] if len(damaged) > _SHOWN else [])]


def _word(name: str) -> str:
    """A queue's name as one types it."""
    return ("-- " if name.startswith("-") else "") + shlex.quote(name)


def _plural(count: int, noun: str, many: str = "") -> str:
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
