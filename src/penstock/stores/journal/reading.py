"""A journal read as opening reads it, but nothing is changed and every disaster is only noted."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.records import Ack, Pop, Put, Remove
from penstock.stores.journal import groups
from penstock.stores.journal.catalog import Entry
from penstock.stores.journal.files import ROTATED, Segment
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.format import Entry as KestrelEntry
from penstock.stores.journal.loading import IMPOSSIBLE, Loader, Rest, look_at_rest, read_groups
from penstock.stores.journal.records import Image, LoadName, PageImage, decode_all
from penstock.stores.journal.recovery import lacks_latest
from penstock.stores.journal.segments import replay_order
from penstock.stores.journal.snapshot import Snapshot
from penstock.system.files import Disk, File

_TRIES = 10  # to see all files of a journal at one moment, while another process renames them
_WAITING = ("delayed", "available", "in_flight", "failed")


@dataclass
class Found:
    """A journal as it lies in its folder."""

    name: str  # of the queue
    file: str
    known: Entry | None
    segments: list[Segment]
    clean: int | None  # the number of the next group when the store was closed
    dialect: Dialect
    forgotten: str = ""  # the missing file in which the store had its settings, if it is no stranger's


@dataclass(frozen=True)
class Damage:
    """Where reading had to end."""

    position: int  # which file it is, counted from the first
    offset: int
    why: str


@dataclass
class Reading:
    """What a journal says as far as it can be read."""

    ledger: Ledger
    loader: Loader
    indexed: bool = False  # read from its snapshot on
    end: int = 0  # of the last whole group in the last file
    damage: Damage | None = None
    torn: tuple[Segment, Rest] | None = None
    foreign: list[KestrelEntry] = field(default_factory=list)
    unreadable: list[tuple[Segment, int]] = field(default_factory=list)  # from where on, in another's entries


def open_segments(folder: str, journal: str, disk: Disk) -> list[Segment]:
    """The files of a journal in the order in which they are read, all open, as they are at one moment."""
    segments: list[Segment] = []
    for _ in range(_TRIES):
        names = _files_of(folder, journal, disk)
        with suppress(FileNotFoundError):  # renamed or packed away meanwhile
            segments = open_all(names, lambda name: disk.open(os.path.join(folder, name)))
            if _files_of(folder, journal, disk) == names:
                break
            close(segments)
    return segments


def _files_of(folder: str, journal: str, disk: Disk) -> list[str]:
    """The files of a journal in order; the latest, whatever it is, so that what is no file is told."""
    latest = {journal} & set(disk.listdir(folder))
    return replay_order({*disk.listfiles(folder), *latest}, journal)


def open_all(names: Sequence[str], open_file: Callable[[str], File]) -> list[Segment]:
    """Open files of a journal, all or none."""
    segments: list[Segment] = []
    try:
        for number, name in enumerate(names, ROTATED):
            file = open_file(name)
            segments.append(Segment(number, name.removesuffix(".pack"), file, file.size()))
    except BaseException:
        close(segments)
        raise
    return segments


def close(segments: Sequence[Segment]) -> None:
    """Let go of the files."""
    for segment in segments:
        segment.file.close()


def read(journal: Found, index: Snapshot | None = None, kind: type[Ledger] = Ledger) -> Reading:
    """Read a journal from its beginning, or on top of a snapshot that holds, into a ledger of some kind."""
    known = journal.known
    ledger = kind(journal.name, known.settings if known else Settings())
    reading = Reading(ledger, Loader(ledger, known.starts if known else [1]))
    first, offset = 0, 0
    if index is not None:
        reading.indexed = True
        try:
            index.number(journal.segments)
            reading.loader.resume(index.load(ledger), index.at)
        except StoreCorrupt as error:
            reading.damage = Damage(0, 0, str(error))
            return reading
        first, offset = len(index.files) - 1, index.files[-1]["size"]
    for position, segment in enumerate(journal.segments[first:], first):
        reading.damage = _read_segment(journal, reading, position, segment, offset)
        if reading.damage is not None:
            break
        offset = 0
    try:
        reading.loader.finish()
    except StoreCorrupt as error:
        reading.damage = reading.damage or Damage(len(journal.segments), 0, str(error))
    reading.damage = _forgotten(journal, reading) or reading.damage or _missing_end(journal, reading)
    if known is not None and reading.damage is None:
        ledger.skip_to(known.first)
    return reading


def _read_segment(journal: Found, reading: Reading, position: int, segment: Segment, offset: int) -> Damage | None:
    loader, name = reading.loader, os.path.basename(segment.file.path)
    loader.here = offset
    try:
        if not reading.foreign:
            offset = loader.replay(segment, offset)
        ours = (journal.known is not None or loader.begun) and not reading.foreign
        rest = look_at_rest(segment, offset, ours, journal.dialect)
        while rest is not None and ours and (end := loader.replay(segment, offset)) > offset:
            offset = end  # it was just being written
            rest = look_at_rest(segment, offset, ours, journal.dialect)
    except StoreCorrupt as error:
        return Damage(position, loader.here, str(error))
    except OSError as error:
        return Damage(position, offset, f"{name} cannot be read: {error.strerror}")
    reading.end = offset
    if rest is None:
        return None
    last = position == len(journal.segments) - 1
    if rest.group_after is not None or (rest.torn and not (last and journal.clean is None)):
        number = "a packed group" if loader.begun and not loader.next_group else f"group {loader.next_group}"
        return Damage(
            position, rest.offset, f"{name} is damaged at offset {rest.offset}, where {number} should be"
        )
    if rest.torn:
        reading.torn = segment, rest
    elif rest.broken is not None:
        reading.unreadable.append((segment, rest.broken))
    if not rest.torn:
        reading.foreign += rest.entries
    return None


def _forgotten(journal: Found, reading: Reading) -> Damage | None:
    if journal.forgotten and reading.loader.begun:
        return Damage(0, 0, f"{journal.forgotten} is missing, in which its name and settings were")
    return None


def _missing_end(journal: Found, reading: Reading) -> Damage | None:
    reached, there = reading.loader.next_group, len(journal.segments)
    known = journal.known
    if known is not None and not reading.foreign and lacks_latest(known, reached, journal.segments, journal.clean):
        return Damage(
            there, 0, f"it ends with group {reached - 1}, but its latest file began with group {known.latest}"
        )
    if journal.clean is not None and reached < journal.clean and not reading.foreign:
        return Damage(
            there, 0, f"it ends with group {reached - 1}, but the store was closed after group {journal.clean - 1}"
        )
    return None


def covers(index: Snapshot, damage: Damage) -> bool:
    """Whether a snapshot stands for the bytes that are damaged, so that opening does not look at them."""
    last = len(index.files) - 1
    return damage.position < last or (damage.position == last and damage.offset < index.files[last]["size"])


def left_of(segments: Sequence[Segment], reading: Reading, damage: Damage) -> tuple[int, int]:
    """How many messages that are not settled are in whole groups before damage, and after it."""
    there: set[int] = set()
    gone: set[int] = set()
    offset = damage.offset
    for segment in segments[damage.position :]:
        for group in _whole_groups(segment, offset):
            with suppress(*IMPOSSIBLE):
                for item in decode_all(group.records, sum(each.size for each in segments)):
                    if isinstance(item, PageImage):
                        rows = zip(item.page.keys(), item.page.state, strict=False)
                        there.update(item.first + key for key, state in rows if state)
                    elif not isinstance(item, Image | LoadName):
                        record = item[0]
                        if isinstance(record, Put):
                            there.update(range(record.first, record.first + len(record.priority)))
                        elif isinstance(record, Ack | Pop | Remove):
                            gone.update(record.seqs)
        offset = 0
    ledger = reading.ledger
    before = {seq for state in _WAITING for seq in ledger.listed(state, 0, ledger.size())}
    return len(before - gone), len(there - gone - before)


def _whole_groups(segment: Segment, offset: int) -> Iterator[groups.Group]:
    """Every whole group from offset on, also behind bytes that are none."""
    while offset < segment.size:
        for start, group in read_groups(segment.file, segment.size, offset):
            yield group
            offset = start + group.length
        data = segment.file.read(offset, segment.size - offset)
        after = groups.next_head(data, 1)
        if after is None:
            return
        offset += after
