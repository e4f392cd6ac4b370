"""Taking over what another program wrote: a folder that Kestrel left, or what it appended to a journal of ours.

Such entries are replayed by Kestrel's document alone, on top of our messages, which for Kestrel are open
transactions. What is left afterwards is written as a packed file of ours, which replaces everything before it.
"""

import struct
from collections.abc import Sequence

from penstock.rules.index.rows import Page
from penstock.rules.records import Put, Remove
from penstock.rules.state import State
from penstock.stores.journal import building
from penstock.stores.journal.files import JournalFiles, Segment, mode_of
from penstock.stores.journal.format import Dialect, Entry
from penstock.stores.journal.loading import Item, unpack_item
from penstock.stores.journal.replay import Replay
from penstock.stores.journal.xids import last_xid, xid_of

_ADDX = struct.Struct("<Biqq")
_REMOVE_TENTATIVE = b"\x03"


def replay_entries(state: State, entries: Sequence[Entry], now: int) -> dict[int, Item]:
    """Let another's entries happen to a queue; where the bodies are of the messages that came with them."""
    model = Replay(last_xid=last_xid(state.next_seq))
    ours = {seq for name in ("delayed", "available", "in_flight", "failed") for seq in _all(state, name)}
    model.open = {xid_of(seq): seq.to_bytes(8, "little") for seq in ours}
    for entry in entries:
        model.apply(entry)
    left = [unpack_item(model.open[xid]) for xid in sorted(model.open)]
    left += [unpack_item(data) for data in model.queue]
    state.advance(now)  # not before: what has expired was still there for Kestrel
    state.gone.clear()
    removed = [seq for seq in sorted(ours - {each for each in left if isinstance(each, int)}) if state.has(seq)]
    if removed:
        state.replay(Remove(now, removed))
    items = [each for each in left if isinstance(each, Item)]
    if not items:
        return {}
    first, count = state.next_seq, len(items)
    visible_at = [each.added if 0 < each.added <= now else now for each in items]
    # Kestrel takes any expiry but 0 for a time, also one before 1970.
    expires_at = [max(1, each.expiry) if each.expiry else 0 for each in items]
    state.replay(Put(now, first, [0] * count, visible_at, expires_at, {}))
    state.place(first, [0] * count, [each.size for each in items], [0] * count)
    return dict(enumerate(items, first))


def rewrite(
    files: JournalFiles,
    segments: Sequence[Segment],
    state: State,
    items: dict[int, Item],
    next_group: int,
    now: int,
    dialect: Dialect,
) -> Segment:
    """Replace all files of a journal by a packed one; crash-safe as packing is."""
    disk = files.disk
    stamps = [files.stamp(each.name) for each in segments if each.name != files.name]
    stamp = max([now, *[each + 1 for each in stamps]])
    for segment in segments:
        if segment.name == files.name:
            disk.rename(files.path(files.name), files.path(files.rotated(stamp)))
            files.sync()
            segment.name = files.rotated(stamp)
    ours = building.from_segments(segments)
    numbered = {segment.number: segment for segment in segments}

    def fetch(first: int, page: Page, rows: Sequence[int]) -> list[bytes]:
        keys = page.keys()
        return [
            _body(items[first + keys[row]], numbered, now)
            if first + keys[row] in items
            else ours(first, page, [row])[0]
            for row in rows
        ]

    temporary = files.path(files.temporary(stamp))
    file = disk.open(temporary, create=True, mode=mode_of(segments))
    building.write_pack(file, state.freeze(), fetch, next_group, now, dialect)
    file.sync()
    packed = files.rotated(stamp) + ".pack"
    disk.rename(temporary, files.path(packed))
    files.sync()
    files.finish_pack(packed, [each.name for each in segments])
    file.path = files.path(files.rotated(stamp))
    return Segment(segments[0].number, files.rotated(stamp), file, file.size())


def _body(item: Item, segments: dict[int, Segment], now: int) -> bytes:
    """A stranger's item as a body of ours."""
    payload = segments[item.segment].file.read(item.offset, item.size)
    return _ADDX.pack(2, 16 + len(payload), item.added or now, item.expiry) + payload + _REMOVE_TENTATIVE


def _all(state: State, name: str) -> list[int]:
    return state.listed(name, 0, state.size())
