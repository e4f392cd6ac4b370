"""Doctor for slate stores: checks every row of a snapshot, every large payload, and the files of the log.

It changes nothing but for links that pin files meanwhile (snapshot.py), so another process may have the store
open. If none has, the rows are those that opening would find: opening goes back to what was synced (folder.py).
"""

import json
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.contract.dumps import Piece, damaged
from penstock.contract.examination import Examination, Finding
from penstock.contract.message import STATES
from penstock.errors import InvalidArgument, PenstockError, StoreCorrupt, StoreUnavailable
from penstock.filters import reason_against
from penstock.stores.slate import binding, entries, extensions, recovery, snapshot
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import blocking
from penstock.stores.slate.bucket import RESTORE as IN_A_BUCKET
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.folder import RESTORE, Folder
from penstock.stores.slate.format import parse_key
from penstock.stores.slate.loads import is_given_up
from penstock.stores.slate.place import STAGED, SUBFOLDER, Place, parse
from penstock.stores.slate.snapshot import Snapshot, View
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk, unavailable

_SECONDS = 60.0
_AT_ONCE = 1_000
_TEXT = re.compile(rb"[ -~]{4,}")
_DECODERS: dict[int, tuple[str, Callable[[bytes], Any]]] = {  # by type of record: its name and its decoder
    records.PAYLOAD: ("payload", records.decode_payload),
    records.ACTIVE: ("active", records.decode_active),
    records.DONE: ("done", records.decode_settled),
    records.FAILED: ("failed", records.decode_settled),
    records.ATTEMPTS: ("attempts", records.decode_attempts),
    records.CONFIG: ("config", records.decode_others_config),
    records.SETTINGS: ("settings", bytes.decode),
    records.SIZES: ("sizes", extensions.decode_sizes),
    records.CLAIMS: ("claims", extensions.decode_claims),
    records.RECENT: ("recent", extensions.decode_recent),
    records.POSITION: ("position", extensions.decode_position),
    records.EXPIRY: ("expiry", bytes),
    records.CLOCK: ("clock", extensions.decode_clock),
    records.LOG_END: ("log end", extensions.decode_log_end),
    records.INSTANCE: ("instance", extensions.decode_instance),
    records.LOAD: ("load", bytes.decode),
    records.RUN: ("run", bytes.decode),
    records.SINK: ("sink", bytes.decode),
    records.BATCHES: ("batches", extensions.decode_last_batch),
    records.STREAM: ("stream", extensions.decode_stream),
    records.FAILURES: ("failures", extensions.decode_failures),
    records.KEPT: ("kept", extensions.decode_kept),
    records.FOLLOWED: ("followed", extensions.decode_marks),
    records.HELD_BACK: ("held back", extensions.decode_retained),
    records.LOG: ("log entry", records.decode_metadata),
    records.SEQ_BLOCK: ("SeqBlock", records.decode_seq_block),
}
_MOST = 20  # findings of one kind that are shown
_AS_IT_IS = "nothing: it is left as it is"
_HELD = (
    "nothing is routed to it, and other queues are not affected: drain it, delete it, and create it anew with "
    "a filter of Penstock's"
)
_RESTORE = "restore the store from a backup, or copy it and open the copy to see what is left"
_RESTORE_FILES = "put these files back from a backup"


def rows(folder: str | os.PathLike[str]) -> Iterator[tuple[bytes, bytes]]:
    """Every row of the store in a folder, which may be open; nothing is changed."""
    return _rows(Folder(os.fspath(folder), "never"))


def _rows(place: Folder | BucketPlace) -> Iterator[tuple[bytes, bytes]]:
    ffi = binding.load()
    reader = blocking(ffi.DbReaderBuilder(place.path, place.object_store()).build(), _SECONDS)
    try:
        scan = reader.scan(ffi.KeyRange(start=b"\x00", start_inclusive=True, end=b"\xff", end_inclusive=True))
        iterator = blocking(scan, _SECONDS)
        while found := blocking(iterator.next_batch(_AT_ONCE), _SECONDS):
            for row in found:
                yield row.key, row.value
    finally:
        blocking(reader.shutdown(), _SECONDS)


def dump(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Every row as three lines: the decoded record, its key, its value; bytes are hexadecimal, texts in quotes."""
    for key, value in rows(folder):
        name, decode = _DECODERS[parse_key(key).kind]
        decoded = str(decode(value))
        yield f"{name}: {decoded if len(decoded) <= 300 else decoded[:300] + ' ...'}"
        yield f"    {readable(key)}"
        yield f"    {readable(value[:200])}{' ...' if len(value) > 200 else ''}".rstrip()


def pieces(url: str) -> Iterator[Piece]:
    """Every row of a store as a decoded record, for `penstock dump`; a row that cannot be decoded is damage."""
    if not snapshot.exists(url):
        raise PenstockError(f"there is no slate store at {url!r}: check the name")
    for key, value in _rows(snapshot.place_at(url)):
        try:
            parsed = parse_key(key)
            name, decode = _DECODERS[parsed.kind]
            known = {field: each for field, each in parsed._asdict().items() if each and field != "kind"}
            yield Piece(name, {**known, "record": decode(value), "size": len(value), "key": key.hex(" ")})
        except (PenstockError, ValueError, LookupError, struct.error) as error:
            yield damaged(None, f"the record with the key {readable(key)} cannot be read: {error}", len(value))


def readable(data: bytes) -> str:
    """Bytes in hexadecimal, with texts of four and more characters in quotes."""
    parts, end = [], 0
    for text in _TEXT.finditer(data):
        parts += [data[end : text.start()].hex(" "), f"'{text[0].decode()}'"]
        end = text.end()
    return " ".join(filter(None, [*parts, data[end:].hex(" ")]))


@dataclass
class SlateQueue:
    """A queue's messages, as the store would show them if it were opened at that moment."""

    name: str
    bytes: int = 0  # of payloads
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    lag: int | None = None  # log entries that the router has not offered to it; None: it has no filter
    findings: list[Finding] = field(default_factory=list)

    def cells(self) -> Mapping[str, int | None]:
        return {"bytes": self.bytes, **self.counts, "lag": self.lag}


def examine(url: str, now: int | None = None) -> Examination[SlateQueue]:
    """Examine a slate store, as of now.

    >>> examine("slate:data").sound
    """
    where = parse(url)
    found: Examination[SlateQueue] = Examination(where.where, SystemClock().now() if now is None else now)
    if not snapshot.exists(url):
        text = f"there is no slate store {where.where!r}"
        found.findings.append(_problem(text, "check the name; opening it makes one"))
        return found
    place = snapshot.place_at(url)
    aside: list[str] = []
    try:
        if isinstance(place, Folder):
            found.holder = _holder(place)
            aside = _compare(place, found)
        else:
            found.findings += _shortened([_problem(text, IN_A_BUCKET) for text in place.lost()])
        if not found.sound:
            return found  # rows of a damaged database prove nothing
        taken = snapshot.take(url, os.getpid())
    except StoreCorrupt as error:
        found.findings.append(_problem(str(error)))
        return found
    except PenstockError:
        raise
    except OSError as error:
        raise unavailable(error.filename or where.where, error) from error
    try:
        for path in aside:  # so that the rows are those that opening would find
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(taken.held, os.path.relpath(path, where.where)))
        look(taken, place, where.log, found)
    finally:
        snapshot.drop(taken)
    return found


# Files


def _holder(place: Folder) -> str | None:
    """The process that has the store open."""
    with suppress(FileNotFoundError), SystemDisk().open(os.path.join(place.subfolder, "lock")) as file:
        if not file.lock():
            return file.read(0, 100).decode(errors="replace").strip() or "another process"
        file.unlock()
    return None


def _problem(text: str, advice: str = _RESTORE, file: str | None = None) -> Finding:
    return Finding("problem", text, advice, file)


def _note(text: str, advice: str, file: str | None = None) -> Finding:
    return Finding("note", text, advice, file)


def _compare(place: Folder, found: Examination[SlateQueue]) -> list[str]:
    """Compare the files with the record of synced ones; the files that opening would set aside."""
    tell = found.findings.append
    if found.holder is not None:
        text = f"the store is open in {found.holder}: a snapshot was examined, and files that are left over or"
        text += " missing were not looked for, as they may be in use"
        tell(_note(text, "for a certain answer close it there first"))
        return []
    try:
        compared = place.compare()
    except StoreCorrupt as error:
        text, _, advice = str(error).partition(": ")
        tell(_problem(text, advice, os.path.join(place.subfolder, "synced")))
        return []
    if compared.record is None:
        text = "there is no record of synced files: another program made this database, or it is"
        tell(_note(f"{text} a backup that was never opened", "nothing: opening writes one"))
    if left := [path for path in compared.aside if "#" in path]:
        text = f"{len(left)} files were being written when the process that had the store ended"
        tell(_note(text, "nothing: opening sets them aside"))
    found.findings += _shortened([_problem(text, RESTORE, place.folder) for text in compared.lost])
    for path in reversed(compared.torn):
        name = f"{os.path.basename(path)}, at the end of the log,"
        if compared.synced is not None:
            text = f"{name} was never acknowledged: it, or a file before it, is torn"
            tell(_note(text, "nothing: opening sets it aside", path))
        else:
            text = f"{name} or a file before it, is torn, and whether it was acknowledged is recorded nowhere"
            tell(_problem(f"{text}: opening sets it aside", file=path))
    return compared.aside


# Rows


class _Seen:
    """Counts and findings, gathered row by row."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[int] = Counter()
        self.payloads: dict[int, int] = {}  # size of each inline payload; 0: it is an object
        self.objects: dict[str, str | None] = {}  # checksum of each large payload, if its log entry has one
        self.log: dict[int, int] = {}  # payload size of each log entry
        self.last_published = 0
        self.unknown_consumers = 0
        self.loads: dict[str, dict[str, object]] = {}

    def take(self, key: bytes, value: bytes) -> None:
        """Decode a row and note its contents; a record that cannot be decoded is a finding."""
        try:
            parsed = parse_key(key)
            decoded = _DECODERS[parsed.kind][1](value)
            self.counts[parsed.kind] += 1
            if parsed.kind == records.PAYLOAD:
                self.payloads[parsed.number] = len(decoded) if isinstance(decoded, bytes) else 0
                if isinstance(decoded, str):
                    self.objects[records.object_of(decoded)] = None
            elif parsed.kind == records.LOG:
                self.log[parsed.number] = entries.size_of(decoded) or self.payloads.get(parsed.number, 0)
                if (name := str(parsed.number)) in self.objects:  # payloads come before the log
                    self.objects[name] = decoded.headers.get(entries.CHECKSUM_HEADER)
                if entries.is_published(decoded):
                    self.last_published = max(self.last_published, parsed.number)
            elif parsed.kind == records.LOAD:
                self.loads[parsed.queue] = json.loads(decoded)
        except (PenstockError, ValueError, LookupError) as error:
            if key[:2] == bytes((records.VERSION, records.ATTEMPTS)):
                self.unknown_consumers += 1
                return
            name = _DECODERS.get(key[1] if len(key) > 1 else 0, ("unknown", None))[0]
            self.findings.append(_problem(f"a record ({name}, key {readable(key)}) cannot be read: {error}"))


def look(taken: Snapshot, place: Folder | BucketPlace, log: str, found: Examination[SlateQueue]) -> None:
    """Read every row of a snapshot, and check that queues, log, payloads and loads agree."""
    seen = _Seen()
    try:
        _, view = snapshot.opened_for(taken, log)
        with closing(view):
            for some in view.batches(b"\x00", b"\xff"):
                for key, value in some:
                    seen.take(key, value)
            if not seen.findings:
                _look_at_queues(view, log, seen, found)
    except StoreCorrupt as error:
        seen.findings.append(_problem(str(error)))
    except InvalidArgument as error:  # the URL names another instance
        seen.findings.append(_problem(str(error), "give the store's URL with its instance"))
    found.findings += _shortened(seen.findings)
    if seen.unknown_consumers:
        text = f"{seen.unknown_consumers:,} lists of a message's consumers cannot be read: another program"
        found.findings.append(_note(f"{text} wrote them, or they are damaged", _AS_IT_IS))
    found.findings += _objects(seen, place, found.holder)
    found.findings += _staged(seen, place, found.holder)
    if found.sound:
        rows = sum(seen.counts.values())
        text = f"{rows:,} records were read, and {len(seen.log):,} messages in the log"
        found.findings.append(Finding("ok", text))


def _look_at_queues(view: View, log: str, seen: _Seen, found: Examination[SlateQueue]) -> None:
    contents = recovery.load(view, log)
    if recovery.has_others(contents):
        recovery.measure(contents, view, log)
    tell = found.findings.append
    for name in sorted(contents.strangers):
        tell(_note(f"there is a queue {name!a}, a name that Penstock does not allow", _AS_IT_IS))
    if contents.leftovers:
        tell(_note("a queue was deleted, but not all of its records", "nothing: opening removes them"))
    at, listed = max(found.at, contents.at), set[int]()
    for name, loaded in sorted(contents.queues.items()):
        ledger = loaded.ledger
        ledger.state.advance(at)
        queue = SlateQueue(name, counts=ledger.state.counts())
        found.queues.append(queue)
        missing = []
        for seq in ledger.state.listed(None, 0, ledger.state.next_seq):
            listed.add(seq)
            page, position = ledger.state.rows.locate(seq)
            queue.bytes += page.size[position] or seen.log.get(seq, 0)
            if seq not in seen.payloads or seq not in seen.log:
                missing.append(seq)
        if missing:
            text = f"{len(missing):,} messages have no payload or no entry in the log"
            advice = f"restore the store from a backup, or `penstock remove {name} {missing[0]}`"
            queue.findings.append(_problem(f"{text}, message {missing[0]} for example", advice))
        wanted = ledger.settings.filter
        if wanted is not None and (reason := reason_against(wanted)) is not None:
            queue.findings.append(_note(f"its filter is not understood: {reason}", _HELD))
        if wanted is not None:
            own, held = loaded.position
            position = own if held else max(own, contents.position)
            queue.lag = max(0, seen.last_published + 1 - position)
    if bare := sorted(seen.log.keys() - seen.payloads.keys() - listed):
        tell(_problem(f"{len(bare):,} entries of the log have no payload, message {bare[0]} for example"))


def _objects(seen: _Seen, place: Folder | BucketPlace, holder: str | None) -> Iterator[Finding]:
    there = set(place.list_objects())
    lost, damaged = sorted(seen.objects.keys() - there), []
    for name in sorted(seen.objects.keys() & there):
        try:
            payload = place.get_object(name)
            entries.check_object(os.path.join("objects", name), payload, seen.objects[name], place.what)
        except FileNotFoundError:  # it was removed just now
            pass
        except (StoreCorrupt, StoreUnavailable) as error:
            damaged.append(str(error))
    if damaged:
        text = f"{len(damaged):,} large payloads cannot be read, for example: {damaged[0]}"
        yield _problem(text, _RESTORE_FILES)
    if lost and holder is None:
        text = f"{len(lost):,} large payloads are missing, {os.path.join('objects', lost[0])} for example"
        yield _problem(text, _RESTORE_FILES)
    unused = {name for name in there - seen.objects.keys() if name.isdecimal()}
    if unused and holder is None:
        text = f"{len(unused):,} large payloads belong to messages that are gone, or were never committed"
        yield _note(text, "nothing: opening sets them aside, for a week")


def _staged(seen: _Seen, place: Place, holder: str | None) -> Iterator[Finding]:
    """Loads that are committed and unfinished, and staged loads that were abandoned."""
    staged = set(place.list_loads())
    for name, content in seen.loads.items():
        if holder is None and not content["frames"]:
            continue
        if name in staged or holder is not None:
            text = f"load {name} is committed, and some of its messages are not in their queues yet"
            yield _note(text, "nothing: opening finishes it, or the process that has the store open does")
        else:
            text = f"load {name} is committed, and its staged messages are gone ({SUBFOLDER}/{STAGED})"
            yield _problem(text, "put that folder back from a backup")
    for load in sorted(staged - set(seen.loads)):
        if holder is None and is_given_up(load):
            text = f"load {load} was abandoned by a process that has ended"
            yield _note(text, "nothing: opening sets it aside, for a week")


def _shortened(findings: list[Finding]) -> list[Finding]:
    if len(findings) <= _MOST:
        return findings
    return [*findings[:_MOST], _problem(f"and {len(findings) - _MOST:,} more like these")]
