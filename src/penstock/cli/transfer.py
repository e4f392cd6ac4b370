"""The commands export and import: the messages of a queue as JSON lines."""

import base64
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import click

import penstock
from penstock.cli import output
from penstock.cli.app import Failure, cli, json_option, open_store, queue_argument, say
from penstock.cli.messages import check_stdin
from penstock.contract.arguments import check_known
from penstock.contract.kinds import kind_of
from penstock.contract.message import LATEST, MESSAGE_FIELDS, ORIGIN_HEADER, STATES, Entry, Message
from penstock.contract.operations import PAGE, Messages, Put
from penstock.contract.settings import FIVE_MINUTES, MAX_COUNT, whole
from penstock.errors import InvalidArgument, NotSupported, PenstockError
from penstock.system.clock import SystemClock, at_least_one

if TYPE_CHECKING:
    from penstock.contract.loads import Loads

_BATCH = 1_000  # messages
_BYTES = 8 << 20  # of lines in a batch
_MARGIN = 30_000  # milliseconds of a key's five minutes that are not relied on
_DRAFT = ("payload", "payload_base64", "headers", "priority", "created_at", "delay", "retention", "group")
_PAST = ("received_at", "state", "attempts", "claimed_at", "settled_at", "consumer", "reason")
_EXPORTED = [name for name in MESSAGE_FIELDS if name not in ("payload", "queue", "receipt", "lease_until")]
_KNOWN = {*_DRAFT, *MESSAGE_FIELDS}
_SETTLED = ("done", "failed")
Item = TypeVar("Item")


# Export


@cli.command(
    "export",
    epilog="""\b
Examples:
  penstock export jobs jobs.jsonl
  penstock export jobs --state failed | jq -r .reason | sort | uniq -c
  penstock --store old export jobs | penstock --store new import - jobs""",
)
@queue_argument()
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option("--state", type=click.Choice(STATES), help="Only messages in this state.")
@json_option
@click.pass_context
def export_messages(ctx: click.Context, queue: str, file: str | None, state: str | None, as_json: bool) -> None:
    """Write the messages of QUEUE as JSON lines.

    They go into FILE, or to stdout. A line is a message: payload (payload_base64 if it is no text), headers,
    priority, created_at, received_at, visible_at, expires_at, state, attempts and what else applies; times are
    milliseconds since the epoch. Of earlier attempts only the last is told: `convert` copies all of them.

    The messages stay where they are. They are read page by page, in constant memory. What changes meanwhile may be
    in the file or not: stop producers and consumers first if it must be exact. FILE must not exist. It is written
    as FILE.partial and renamed at the end, so that an interruption leaves no FILE.

    With a FILE, --json prints the number of messages.
    """
    store = open_store(ctx)
    name = store.queue(queue).name
    listed: Iterator[Message] = store.run(Messages(name, limit=PAGE, state=state))
    lines = _grouped(map(_as_line, listed))
    if not (file in (None, "-") and sys.stdout.isatty()):  # else the bar would be among the lines
        lines = output.counted(lines, f"exporting {name}")
    if file in (None, "-"):
        count = 0
        for some in lines:
            click.echo(b"".join(some), nl=False)
            count += len(some)
        if not count and not as_json:
            click.echo(f"queue {name!r} has no {f'{state} ' if state else ''}messages", err=True)
        return
    count = _write(file or "", lines)
    say(as_json, {"exported": count, "file": file}, f"exported {output.plural(count, 'message')} to {file}")


def _as_line(message: Message) -> bytes:
    fields = {name: value for name in _EXPORTED if (value := getattr(message, name)) not in (None, {})}
    try:
        payload = {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(message.payload).decode()}
    return json.dumps({"id": message.id, **payload, **fields}, ensure_ascii=False).encode() + b"\n"


def _write(path: str, lines: Iterable[list[bytes]]) -> int:
    """Write a new file, which is there only as a whole; the number of lines."""
    from penstock.system.files import SystemDisk  # late, as hashlib below: every command imports this module

    disk, partial, count = SystemDisk(), f"{path}.partial", 0
    if disk.exists(path):
        raise click.UsageError(f"{path!r} exists: give another name, or remove it")
    with suppress(FileNotFoundError):
        disk.unlink(partial)  # of an export that was killed
    try:
        opened = disk.open(partial, exclusive=True)
    except OSError as error:
        raise PenstockError(f"cannot write {path!r}: {error.strerror}") from error
    try:
        with opened as file:
            for some in lines:
                file.append(b"".join(some))
                count += len(some)
            file.sync()
        disk.rename(partial, path)
        disk.sync_folder(os.path.dirname(path) or ".")
    except BaseException:
        with suppress(OSError):
            disk.unlink(partial)
        raise
    return count


def _grouped(lines: Iterable[Item]) -> Iterator[list[Item]]:
    """Lines in batches of a thousand, or of a few megabytes."""
    batch: list[Item] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)  # type: ignore[arg-type]
        if len(batch) == _BATCH or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# Import


@cli.command(
    "import",
    epilog="""\b
Examples:
  penstock import jobs.jsonl jobs
  penstock import jobs.jsonl jobs --id second-time
  jq -c '{payload: tojson}' events.json | penstock import - jobs""",
)
@click.argument("file", metavar="FILE|-")
@queue_argument()
@click.option("--id", "name", metavar="NAME", help="Import the same lines once more, under this name.")
@click.option("--skip", type=click.IntRange(0, MAX_COUNT), help="Begin after this number of lines.")
@json_option
@click.pass_context
def import_messages(
    ctx: click.Context, file: str, queue: str, name: str | None, skip: int | None, as_json: bool
) -> None:
    """Put messages from JSON lines into QUEUE.

    FILE has lines as `export` writes them. A line needs a payload, or a payload_base64, and can have what export
    writes, or delay and retention in seconds in place of visible_at and expires_at. Messages get new ids. Those in
    flight arrive as available.

    \b
    Into a journal or slate store, or a server of one, all lines are imported at once or none:
      an error or an interruption leaves nothing, and importing the same lines again does nothing.
      Done and failed messages stay done and failed.

    \b
    Into other stores (text, folder, memory, servers of these) lines are put in batches of a
    thousand, each as a whole:
      an error or an interruption leaves the batches before it. How far it has come is written to
      FILE.progress, durably before and after each batch, and the same command goes on from there.
      A batch that was being put when a machine or process died is put again within five minutes,
      which doubles nothing; later you are asked to look, and to go on with --skip. When all is
      imported FILE.progress stays, and the same command does nothing; remove both files together.
      Done, failed and expired messages are left out, and counted.
    """
    from penstock.contract.loads import Loads  # here, as other commands need no loads

    store = open_store(ctx)
    target = store.queue(queue).name
    loads = Loads(store.run)
    with _opened(file) as source:
        try:
            load = loads.begin({})
        except NotSupported:
            imported = _put(store, target, file, source, name, skip)
        else:
            imported = _load(loads, load, target, source, name, skip or 0)
    left = f"; left out {imported.left:,} that were done, failed or expired" if imported.left else ""
    text = f"imported {output.plural(imported.messages, 'message')} into {target}{left}"
    if imported.repeated:
        text = f"these lines were imported into {target} before: nothing was put (--id imports them once more)"
    say(as_json, {"imported": imported.messages, "left_out": imported.left, "repeated": imported.repeated}, text)


class Imported(NamedTuple):
    """The result of an import."""

    messages: int
    left: int = 0
    repeated: bool = False


class Line(NamedTuple):
    """A checked line. Times of None: those of a new message."""

    number: int
    entry: Entry
    visible_at: int | None
    expires_at: int | None  # 0 = never
    past: dict[str, Any]  # state and attempts in another store, if the line has a state
    size: int

    def __len__(self) -> int:
        return self.size


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        check_stdin()
        yield sys.stdin.buffer
        return
    try:
        source = open(file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise click.UsageError(f"cannot read {file!r}: {error.strerror}") from error
    with source:
        yield source


def _batches(source: Iterable[bytes], skip: int, queue: str) -> Iterator[list[Line]]:
    now = SystemClock().now()
    lines = (_line(number, line, now) for number, line in enumerate(source, 1) if number > skip and line.strip())
    return output.counted(_grouped(lines), f"importing into {queue}")


def _line(number: int, line: bytes, now: int) -> Line:
    from penstock.wire import jsons

    try:
        said = jsons.loads_object(line)
        check_known(said, _KNOWN, "a message")
        draft = {name: said[name] for name in _DRAFT if said.get(name) is not None}
        entry = jsons.entry_from_json(draft, restored="state" in said)
        for time, duration in (("visible_at", "delay"), ("expires_at", "retention")):
            if said.get(time) is not None and duration in draft:
                raise InvalidArgument(f"{time} and {duration} contradict each other: give one of them")
        visible_at, expires_at = (
            None if said.get(time) is None else whole(time, said[time], 0, LATEST)
            for time in ("visible_at", "expires_at")
        )
        if said.get("state", "available") not in STATES:
            raise InvalidArgument(f"there is no state {said['state']!r}; there are {', '.join(STATES)}")
    except (InvalidArgument, TypeError) as error:
        raise PenstockError(f"line {number}: {error}") from None
    if entry.delay:
        visible_at = now + at_least_one(entry.delay)
    if entry.retention is not None:
        expires_at = now + at_least_one(entry.retention) if entry.retention else 0
    past = {name: said.get(name) for name in _PAST} if "state" in said else {}
    return Line(number, replace(entry, delay=0, retention=None), visible_at, expires_at, past, len(line))


# Into a store that has loads


class _Hashed:
    """Lines that are hashed while they are read: the hash is the name of the import."""

    def __init__(self, source: Iterable[bytes]) -> None:
        from hashlib import sha256

        self._source = source
        self.hash = sha256()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._source:
            self.hash.update(line)
            yield line


def _load(loads: "Loads", load: str, queue: str, source: Iterable[bytes], name: str | None, skip: int) -> Imported:
    """Import lines as one load, which is committed once under the hash of queue and lines."""
    from penstock.contract.loads import Sent

    hashed, sent = _Hashed(source), dict.fromkeys(("done", "others", "new"), 0)
    try:
        for batch in _batches(hashed, skip, queue):
            for part in sent:
                lines = [each for each in batch if _part(each) == part]
                if lines:
                    with _named(lines, "nothing was imported"):
                        loads.add(load, part, sent[part], queue, _frame(lines))
                    sent[part] += 1
        run = f"import-{_identity(queue, hashed.hash.hexdigest(), skip, name)}"
        parts = [Sent(part, count) for part, count in sent.items() if count]
        outcome = loads.commit(load, parts, run)
    except BaseException:
        with suppress(PenstockError):  # the store drops it by itself in a day
            loads.abort(load)
        raise
    return Imported(outcome.messages, repeated=not outcome.loaded)


def _part(line: Line) -> str:
    """The part of the load that a line goes to: what a batch can hold together."""
    if not line.past:
        return "new"
    return "done" if line.past["state"] == "done" else "others"


def _frame(lines: Sequence[Line]) -> bytes:
    """A batch of a load, with the columns that some line needs."""
    from penstock.wire import frames

    entries = [line.entry for line in lines]
    columns: dict[str, list[Any]] = {
        "priority": [entry.priority for entry in entries],
        "headers": [entry.headers or None for entry in entries],
        "created_at": [entry.created_at for entry in entries],
        "group": [entry.group for entry in entries],
        "visible_at": [line.visible_at for line in lines],
        "expires_at": [line.expires_at for line in lines],
        **{name: [line.past.get(name) for line in lines] for name in _PAST},
    }
    needed: dict[str, Any] = {
        name: column for name, column in columns.items() if any(value is not None for value in column)
    }
    if "attempts" in needed:
        needed["attempts"] = [count or 0 for count in needed["attempts"]]
    payloads = [entry.payload for entry in entries]
    return frames.encode_columns(needed, list(map(len, payloads)), payloads)


@contextmanager
def _named(lines: Sequence[Line], what: str) -> Iterator[None]:
    """Name the lines of a batch that the store has refused."""
    try:
        yield
    except PenstockError as error:
        raise Failure(error, f"\nin lines {lines[0].number:,} to {lines[-1].number:,}; {what}") from error


def _identity(*parts: object) -> str:
    from hashlib import sha256

    return sha256(json.dumps(parts).encode()).hexdigest()


# Into a store that has none, in batches


class Progress:
    """How far an import has come, on stable storage: one line of JSON in FILE.progress.

    import    what is imported, and where to
    done      lines that were put
    putting   null, or [lines, time]: the batch that was being put then, which may be there or not
    complete  whether all lines were put
    """

    def __init__(self, path: str, identity: str, anew: bool) -> None:
        """`anew`: what an earlier import has left does not matter."""
        from penstock.system.files import SystemDisk

        self._path = path
        self._disk = SystemDisk()
        self.found: dict[str, Any] = {"import": identity, "done": 0, "putting": None, "complete": False}
        if anew or not self._disk.exists(path):
            return
        with self._disk.open(path) as file:
            found = json.loads(file.read(0, file.size()))
        if found.get("import") != identity:
            raise PenstockError(
                f"{path!r} is the progress of another import: the file has changed since, or went into another "
                "queue. Remove it if that import is of no more interest"
            )
        self.found = found

    def write(self, **changes: Any) -> None:
        """Record changes, durably."""
        from penstock.system.files import replace_file

        self.found |= changes
        replace_file(self._disk, self._path, json.dumps(self.found).encode() + b"\n")

    def start(self) -> int:
        """How many lines to leave out; PenstockError if a person has to look first."""
        done: int = self.found["done"]
        if (putting := self.found["putting"]) is None:
            return done
        lines, at = putting
        if SystemClock().now() - at < FIVE_MINUTES - _MARGIN:
            return done  # messages that were put before are known by their keys
        raise PenstockError(
            f"lines {done + 1:,} to {lines:,} may be in the queue or not: the import was interrupted while they "
            f"were put, more than five minutes ago. Look for line {done + 1:,}, then go on with --skip {lines} if "
            f"it is there, or --skip {done} if it is not"
        )


def _put(
    store: penstock.Store, queue: str, file: str, source: BinaryIO, name: str | None, skip: int | None
) -> Imported:
    """Put lines in batches, each in one durable step, with a key for each line."""
    if file == "-":
        raise click.UsageError("into this store an import is repeatable only from a file: give its name")
    hashed, remote = _Hashed(source), kind_of(store.url).remote
    for number, line in enumerate(hashed, 1):
        if not line.strip():
            continue
        headers = _line(number, line, 0).entry.headers or {}  # an error before anything is put
        if remote and ORIGIN_HEADER in headers:
            raise NotSupported(
                f"line {number} is a dead letter of queue {headers[ORIGIN_HEADER]!r}, and a server of this store "
                "takes none from clients: import it on the server's machine, into the store itself"
            )
    source.seek(0)
    place = kind_of(store.url).place(store.url)
    identity = _identity(place, queue, hashed.hash.hexdigest(), name)
    progress = Progress(f"{file}.progress", identity, anew=skip is not None)
    if progress.found["complete"]:
        return Imported(0, repeated=True)
    start, count, left = progress.start() if skip is None else skip, 0, 0
    for batch in _batches(source, start, queue):
        now = SystemClock().now()
        drafts = [draft for line in batch if (draft := _draft(line, identity, now)) is not None]
        progress.write(done=start, putting=[batch[-1].number, now])
        with _named(batch, f"the {start:,} before them were imported; the same command goes on from there"):
            if drafts:
                store.run(Put(queue, drafts))
        start = batch[-1].number
        progress.write(done=start, putting=None)
        count, left = count + len(drafts), left + len(batch) - len(drafts)
    progress.write(complete=True)
    return Imported(count, left)


def _draft(line: Line, identity: str, now: int) -> Entry | None:
    """The line as a new message; None if it is done, failed or expired."""
    if line.past.get("state") in _SETTLED or 0 < (line.expires_at or 0) <= now:
        return None
    never = 0 if line.past or line.expires_at == 0 else None
    return replace(
        line.entry,
        delay=max((line.visible_at or 0) - now, 0) / 1000,
        retention=(line.expires_at - now) / 1000 if line.expires_at else never,
        key=f"{identity[:32]}:{line.number}",
    )
