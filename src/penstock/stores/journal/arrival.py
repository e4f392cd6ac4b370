"""How staged messages become part of a journal: few join the open group, many come as files of their own.

Both are done under the queue's lock. Whoever replays the journal finds the name of the load beside its messages.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from penstock.rules.records import Put
from penstock.rules.state import State
from penstock.stores.journal.records import Recorded, encode_load, encode_put, encode_record
from penstock.stores.journal.staging import Piece, bodies_of, number_group
from penstock.stores.journal.storage import JournalStorage
from penstock.system.files import Disk, File


class StagedFile(NamedTuple):
    """A file with groups of one queue and nothing else."""

    folder: str
    name: str
    pieces: list[Piece]


def append(storage: JournalStorage, load: str, staged: Sequence[tuple[Piece, File]], now: int) -> None:
    """Let staged messages join the open group, which is committed as a whole."""
    state = storage.state
    storage.reservation.skip_open_xids(sum(piece.messages for piece, _ in staged))
    records = bytearray(encode_load(load))
    for piece, file in staged:
        first, content = state.next_seq, bodies_of(piece, file)
        group, offset = storage.begin_piece(first, 0 if piece.done else piece.messages, content)  # done: no xids
        shift = offset - (piece.tail - len(content))
        for record, bodies in _arrive(state, number_group(piece, file, first, 0, now).records, group + shift):
            if isinstance(record, Put) and bodies is not None:
                records += encode_put(record, bodies._replace(offset=[shift + each for each in bodies.offset]))
            else:
                records += encode_record(record)
    storage.end_piece(bytes(records), now)


def install(storage: JournalStorage, staged: Sequence[StagedFile], now: int) -> None:
    """Let staged files follow those of the journal; by the one who leads its commits."""
    state, files, disk = storage.state, storage.files, storage.files.disk
    storage.reservation.skip_open_xids(sum(piece.messages for each in staged for piece in each.pieces))
    number = storage.leave_file()
    storage.at = now = max(storage.at, now)
    for folder, name, pieces in staged:
        path = os.path.join(folder, name)
        file, first, arriving = disk.open(path), state.next_seq, []
        for piece in pieces:
            numbered = number_group(piece, file, first, number, now)
            file.write(piece.offset, numbered.head)
            file.write(piece.offset + piece.tail, numbered.tail)
            arriving.append((piece.offset, numbered.records))
            first, number = first + piece.messages, number + 1
        file.sync()
        rotated = files.rotated(storage.next_stamp())
        _move(disk, path, files.path(rotated))
        file.path = files.path(rotated)
        segment = storage.follow(rotated, file, number)
        for offset, records in arriving:
            _arrive(state, records, segment.base + offset)


def _move(disk: Disk, source: str, target: str) -> None:
    """Durably; if the machine stops, the file may have both names, never none."""
    disk.rename(source, target)
    disk.sync_folder(os.path.dirname(target))
    disk.sync_folder(os.path.dirname(source))


def _arrive(state: State, records: list[Recorded], base: int) -> list[Recorded]:
    """Staged records take effect; offsets of bodies count from base. The records."""
    for record, bodies in records:
        state.replay(record)
        if isinstance(record, Put) and bodies is not None:
            state.place(record.first, [base + each for each in bodies.offset], bodies.size, bodies.crc)
    return records
