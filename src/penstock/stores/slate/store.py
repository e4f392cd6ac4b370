"""The slate backend: queues as OpenData-Queue's records in a SlateDB database, which one process writes."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from penstock.contract.message import PUBLISH_HEADER, Entry, checked_headers
from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings
from penstock.engine.backend import Engine
from penstock.engine.commits import stopped
from penstock.engine.loads import OpenLoads
from penstock.engine.queue import LiveQueue
from penstock.engine.streams import UNHEARD, Known
from penstock.errors import (
    InvalidArgument,
    InvalidFilter,
    InvalidPriority,
    NotSupported,
    PenstockError,
    StoreClosed,
    StoreUnreachable,
)
from penstock.rules.ledger import Ledger
from penstock.stores.slate import extensions, pages, recovery
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import Fenced, Row
from penstock.stores.slate.bodies import Bodies
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.follow import SlateStreams
from penstock.stores.slate.format import instance_of
from penstock.stores.slate.loads import LoadCommit
from penstock.stores.slate.log import Log
from penstock.stores.slate.place import TIMEOUT, parse
from penstock.stores.slate.recovery import PRIORITIES
from penstock.stores.slate.retained import BEFORE
from penstock.stores.slate.routing import CatchingUp, Matches, RoutedQueue, Router, Subscriber, since_of
from penstock.stores.slate.storage import SlateStorage, held
from penstock.stores.slate.writing import Ids, Writer
from penstock.system import processes
from penstock.system.clock import Clock, SystemClock
from penstock.system.files import unavailable
from penstock.system.processes import without_collection
from penstock.system.threads import Lock, Threads

if TYPE_CHECKING:
    from penstock.engine.storage import Storage


_LATER = 1_000  # milliseconds until a queue tries again to catch up
_WHAT_ENTERS = ("filter", "max_payload", "priorities")  # settings that decide which published messages enter
_AT_ONCE = 10_000  # rows that are deleted with one write
_PACKS_ITSELF = "a slate store has nothing to pack: SlateDB compacts by itself, all queues together"
_log = logging.getLogger("penstock")


class BulkOwner:
    """Operations that other processes of this machine ask of the owner (stores/owner_operations.py)."""

    def __init__(self, backend: "SlateBackend") -> None:
        self._backend = backend
        self.take_in = backend.loads.commit
        self.run = backend.loads.run

    def tidy(self) -> bool:
        """Expire messages, and remove unreferenced files."""
        self._backend.tend()
        self._backend._writer.lead(self._backend._writer.commits.flush)
        self._backend.collect()
        return True

    def where(self) -> dict[str, Any]:
        """The log position of all queues that are not held, and the store's instance."""
        return {"position": self._backend._log.position, "instance": instance_of(self._backend._log_key)}

    def route(self, matches: Matches) -> dict[str, int]:
        """Deliver matches; the number of delivered messages, by queue."""
        with without_collection():
            routed = self._backend._router.route(matches)
            self._backend._commit()
        for queue in self._backend._router.behind():
            self._backend.catch_up(queue)
        self._backend._commit()
        return routed


class SlateBackend(Engine):
    """The queues of a slate store, in the process that has it open."""

    far = True

    def __init__(
        self,
        place: Folder | BucketPlace,
        log: str,
        clock: Clock,
        timeout: float,
        threads: Threads | None,
        locked: Callable[[], None],
        deferred: bool = False,
    ) -> None:
        super().__init__(clock, threads)
        self._deferred = deferred
        self._place = place
        self._closed = False
        self._with_default: list[Row] = []  # rows to write with the default queue
        self._start: tuple[int, bool] | None = None  # position and held, of the queue that is being created
        self._storages: dict[str, SlateStorage] = {}
        self._loaded: dict[str, recovery.Loaded] = {}
        self._streams = SlateStreams(self)
        self._opened = self._clock.now()
        place.lock()
        try:
            locked()
            self._database = place.open(timeout)
        except BaseException:
            place.unlock()
            raise
        try:
            self._load(log)
        except BaseException:
            with suppress(Exception):
                self._database.close()
            place.unlock()
            raise
        processes.watch_forks(self)

    # Opening

    def _load(self, log: str) -> None:
        with without_collection():
            found = recovery.load(self._database, log)
            adopted = recovery.adoption(self._database, log)
            self._adopt(found, adopted, log)
            recovery.measure(found, self._database, log)
        self._clock.at_least(found.at, self._place.what)
        self._ids = Ids(found.seq_block, max(found.highest, adopted.last))
        self._bodies = Bodies(self._database, self._place, log, self._place.what)
        self._writer = Writer(self._database, self._place, self._bodies, self._ids, self._threads, self._failed)
        self._log_key = log
        self._log = Log(log, self._database, self._writer, self._bodies, self._ids, found.position, adopted.last)
        self._log.gone = found.log_gone
        self._log.on_expiry = lambda time: self._alarm.set(self._expire, time)
        self._log.needed = self._needed
        self._router = Router(self._log, self._clock, self._deferred)
        self._catching_up = CatchingUp(self._threads, self._router.catch_up, self._commit, self._catch_up_later)
        self.loads = LoadCommit(self)
        self._uploads = OpenLoads(self.loads, self._clock, self._alarm)
        self._owner = BulkOwner(self)
        self._remove_leftovers(found)
        self._loaded = found.queues
        for loaded in found.queues.values():
            self._add(loaded.ledger)
            if loaded.unsorted:
                self._storages[loaded.ledger.name].sort(loaded.unsorted)
        self._loaded = {}
        self._log.expire(self._clock.now())
        if any(storage.followed.marks is not None for storage in self._storages.values()):
            self.look_after_followers()
        self._router.recover()
        self.loads.resume()
        self.moves.note()
        if DEFAULT not in self._queues:
            self.create(DEFAULT, Settings())
        self._commit()
        self._place.loaded()
        for name in self._router.behind():
            self.catch_up(name)

    def _adopt(self, found: recovery.Contents, adopted: recovery.Adoption, log: str) -> None:
        """Add missing records to a database of another program or of an earlier version."""
        rows = [*adopted.moved.items(), *adopted.expiries]
        if not found.is_recorded:
            named: Row = (extensions.INSTANCE_KEY, extensions.encode_instance(records.instance_of(log)))
            (rows if DEFAULT in found.queues else self._with_default).append(named)
        for name in found.unconfigured:
            config = extensions.config_of(found.queues[name].ledger.settings)
            rows.append((records.queue_key(records.CONFIG, name), records.encode_config(config)))
        for name in sorted(found.strangers):
            _log.warning(
                "%s has a queue %a, a name that Penstock does not allow: it is left as it is",
                self._place.what, name,
            )  # fmt: skip
        if rows:
            self._database.write(rows, self._database.timeout + len(rows) / 10_000)
            self._database.flush()
            self._place.make_durable()

    def _remove_leftovers(self, found: recovery.Contents) -> None:
        """Finish deletions that a crash has interrupted."""
        rows = [*found.leftovers]
        for seq in found.leftover_messages:
            rows += records.body_deletions(records.log_prefix(self._log_key), seq)
        self._remove(rows)
        self._place.discard_objects(  # large payloads of messages that were never committed, or are deleted
            [
                name
                for name in self._place.list_objects()
                if name.isdecimal() and self._database.get(records.payload_key(int(name))) is None
            ]
        )

    def _remove(self, rows: list[Row]) -> None:
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            self._writer.lead(lambda part=part: self._writer.write_now(part))  # type: ignore[misc]

    # Queues

    def _check_settings(self, settings: Settings) -> None:
        since_of(settings.start)

    def _new_ledger(self, queue: str, settings: Settings) -> Ledger:
        return recovery.new_ledger(queue, settings)

    def create(self, queue: str, settings: Settings, of_load: bool = False) -> None:
        super().create(queue, settings, of_load)
        if settings.filter is not None and settings.start != "now":
            self.catch_up(queue)
            self._commit()

    def catch_up(self, queue: str) -> None:
        """Offer a held queue the entries that it has missed: some now, the rest in the background."""
        if self._catching_up.go_on(queue):
            return
        try:
            more = self._router.catch_up(queue)
        except StoreUnreachable:  # not the caller's error: its own operation has succeeded
            self._catch_up_later(queue)
        else:
            if more:
                self._catching_up.begin(queue)

    def _catch_up_later(self, queue: str) -> None:
        self._alarm.set(partial(self._catching_up.begin, queue), self._clock.now() + _LATER)

    def exclusively(self, live: LiveQueue, work: Callable[[], int]) -> int:
        written, refusal = 0, None

        def held() -> None:
            nonlocal written, refusal
            try:
                with live.lock:
                    written = work()
            except PenstockError as error:  # in the leader's hands it would stop the store
                refusal = error

        self._writer.lead(held)  # before the lock: the leader of a commit takes the locks of queues
        if refusal is not None:
            raise refusal
        return written

    def write_move(self, target: LiveQueue, put: Callable[[], int], remove: Callable[[], int]) -> int:
        """Both in one write of the database."""
        put()
        written = remove()
        self._writer.commits.flush()
        return written

    def _commit(self) -> None:
        self._writer.commit(self._writer.written)

    def _update(self, live: LiveQueue, changes: Mapping[str, Any]) -> tuple[Settings, int]:
        """A new filter applies to messages published from now on; those published before went by the old one."""
        before, after = live.settings, live.settings.changed(changes)
        if all(before[name] == after[name] for name in _WHAT_ENTERS):
            return super()._update(live, changes)
        name, storage = live.name, self._storages[live.name]
        with self._router.in_order(name):
            anew = after.filter != before.filter
            if anew and storage.held and storage.is_understood:
                raise held(storage)
            self._streams.note_entered(name, (storage.position if storage.held else self._log.end) - 1)
            if anew:  # before the settings, so that no commit has the settings without the position
                live.run(lambda now: storage.move(self._log.end, held=False))
            settings, _ = super()._update(live, changes)
            if anew:
                storage.is_understood = True
                self._router.unsubscribe(name)
                self._subscribe(storage.ledger)
            return settings, self._writer.written

    def _creating(self, queue: str, settings: Settings, first: int) -> None:
        self._start = None
        if settings.filter is not None:
            self._start = (self._log.end, False) if settings.start == "now" else (0, True)
        position = None if self._start is None else extensions.encode_position(*self._start)
        rows: list[Row] = [
            (records.queue_key(records.POSITION, queue), position),
            (records.queue_key(records.CONFIG, queue), records.encode_config(extensions.config_of(settings))),
            (records.queue_key(records.SETTINGS, queue), extensions.encode_settings(settings)),
            *[(records.queue_key(kind, queue), value) for kind, value in pages.OF_THE_DOCUMENT.items()],
            *(self._with_default if queue == DEFAULT else ()),
        ]
        self._writer.lead(lambda: self._writer.write_now(rows))

    def _new_storage(self, ledger: Ledger, lock: Lock) -> "Storage":
        name = ledger.name
        storage = SlateStorage(ledger, lock, self._writer, self._bodies, self._ids, self._log_key)
        storage.present[0] = pages.kinds_of(pages.OF_THE_DOCUMENT)
        if (loaded := self._loaded.get(name)) is not None:
            storage.present, storage.recent.written = loaded.present, loaded.recent
            storage.published, storage.large = loaded.published, loaded.large
            storage.position, storage.held = loaded.position
            storage.is_grouped = loaded.grouped
            storage.streams.load(loaded.streams)
            if loaded.followed is not None:
                storage.followed.load(loaded.followed, loaded.held_back, loaded.streams)
        else:
            storage.position, storage.held = self._start or (0, False)
        storage.was_held = storage.held
        storage.on_room = partial(self.catch_up, name)
        storage.on_room_soon = lambda: self._alarm.set(storage.on_room, self._clock.now())
        self._storages[name] = storage
        return storage

    def _new_queue(self, ledger: Ledger, storage: "Storage", lock: Lock) -> LiveQueue:
        if not self._deferred:
            return super()._new_queue(ledger, storage, lock)
        queue = RoutedQueue(ledger, storage, self._clock, self._alarm, lock)
        queue.router = self._router
        return queue

    def _add(self, ledger: Ledger) -> None:
        super()._add(ledger)
        self._subscribe(ledger)

    def _subscribe(self, ledger: Ledger) -> None:
        """Subscribe a queue to published messages, if it has a valid filter."""
        name = ledger.name
        if name in self._filters:
            since = since_of(ledger.settings.start)
            subscriber = Subscriber(self._queues[name], ledger, self._storages[name], self._filters[name], since)
            self._router.subscribe(name, subscriber)

    def _add_filter(self, queue: str, text: str) -> None:
        """An invalid filter, of another program or a later version, holds its queue."""
        try:
            super()._add_filter(queue, text)
        except InvalidFilter as error:
            storage = self._storages[queue]
            storage.is_understood = False
            if not storage.held:
                storage.move(max(storage.position, self._log.position), held=True)
            _log.warning("queue %r gets no published messages, as its filter is not understood: %s", queue, error)

    def _deleting(self, queue: str, first: int) -> None:
        """The config is deleted first: without it, the next opening removes the remaining rows."""
        storage = self._storages[queue]
        self._router.unsubscribe(queue)

        def begin() -> None:
            self._writer.commits.flush()  # the queue is stopped: no change follows
            storage.retire()
            gone = (records.CONFIG, records.SETTINGS)
            self._writer.write_now([(records.queue_key(kind, queue), None) for kind in gone])

        self._writer.lead(begin)
        self._remove(list(storage.rows()))
        for seq in storage.large:
            self._place.delete_object(str(seq))
        del self._storages[queue]

    def collect(self) -> None:
        """Remove unreferenced files now."""
        self._writer.lead(self._writer.collect)

    # Publishing

    def lag(self, queue: str) -> int | None:
        storage = self._storages.get(queue)
        if storage is not None and not storage.is_understood:
            return self._log.behind(storage.position)
        return self._router.lag(queue)

    def publish(self, entry: Entry) -> str:
        self._check_published(entry)
        published = self._router.publish(entry)
        self._commit()
        return str(published)

    def begin_publishing(self, entry: Entry) -> tuple[str, Writer, int] | None:
        self._check_published(entry)
        if not self._log.lock.acquire(blocking=False):
            return None
        try:
            published = self._router.publish(entry)
            return str(published), self._writer, self._writer.written
        finally:
            self._log.lock.release()

    def _check_published(self, entry: Entry) -> None:
        checked_headers({**(entry.headers or {}), PUBLISH_HEADER: "0" * 19})
        lowest, highest = PRIORITIES
        if not lowest <= entry.priority <= highest:
            raise InvalidPriority(f"priority {entry.priority}; a slate store takes {lowest} to {highest}")
        self._check_open()
        self._writer.check_space([entry])

    def tend(self) -> None:
        super().tend()
        for name in self._router.behind():
            self.catch_up(name)
        self._tend_followers()
        self._expire()

    def _expire(self) -> None:
        """Remove expired messages from the log."""
        if self._refusal is None and self._log.expire(self._clock.now()):
            self._commit()

    def uploads(self) -> OpenLoads:
        return self._uploads

    def streams(self) -> SlateStreams:
        return self._streams

    def _tend_followers(self) -> None:
        """Stop holding messages back for followers that have not asked for a while."""
        self._streams.tend()
        before = self._clock.now() > self._opened + UNHEARD
        for storage in list(self._storages.values()) if before else ():
            with storage.lock:
                storage.followed.leave(BEFORE)
                storage.release()
        if not before or self._streams.is_followed():
            self.look_after_followers()

    def look_after_followers(self) -> None:
        """Schedule _tend_followers()."""
        self._alarm.set(self._tend_followers, self._clock.now() + UNHEARD)

    def _needed(self, seqs: list[int]) -> set[int]:
        """The messages among these that are in batches of streams."""
        needed: set[int] = set()
        for storage in list(self._storages.values()):
            with storage.lock:
                needed |= storage.streams.needed(seqs)
        return needed

    def _known(self, queue: str) -> Known[SlateStorage]:
        live, storage = self.find(queue), self._storages[queue]
        return Known(live, storage.ledger, storage)

    def shrink(self, queue: str) -> int:
        raise NotSupported(_PACKS_ITSELF)

    def stored(self, queue: str) -> int:
        raise NotSupported(_PACKS_ITSELF)

    def take_in(self, load: object) -> bool:
        raise NotSupported("a slate store takes no loads that were staged as journals: put the messages instead")

    def owner(self) -> BulkOwner:
        return self._owner

    # Ending

    def forked(self) -> None:
        """In a forked child: leave the store to the parent."""
        if not self._closed:
            self._closed = True
            self._refusal = _forked
            self._database.forked()
            self._place.forked()
            _parents.append(self)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._alarm.cancel(self._tend_followers)
        self._alarm.cancel(self._expire)
        super().close()
        self._catching_up.stop()
        try:
            with suppress(StoreUnreachable):  # the next opening sets their frames aside
                self._uploads.close()
            if self._failure is None:
                self._writer.finish()
                self._writer.tidy()
        finally:
            try:
                with suppress(StoreClosed):  # fenced by another process, or ended by an error
                    self._database.close()
                    if self._failure is None:
                        self._place.closed()
            finally:
                self._place.unlock()

    def _failed(self, error: BaseException) -> None:
        """Stop all queues: another process has fenced this one, or the last write may be lost."""
        if self._failure is not None:
            return
        self._failure = error

        def told() -> PenstockError:
            return Fenced(str(error)) if isinstance(error, Fenced) else stopped(error)

        self._refusal = told  # type: ignore[assignment]
        _log.error("%s", str(told()))

        def stop() -> None:
            for queue in list(self._queues.values()):
                queue.stop(told)

        with suppress(RuntimeError):  # no thread available: waiting consumers wait until their timeout
            self._threads.start("penstock-stop", stop)


_parents: list[SlateBackend] = []  # backends of the parent process, which a forked child must not free


def _forked() -> StoreClosed:
    return StoreClosed(
        "this process was forked from the one that has the store open: open the store again in this process"
    )


def open_slate(
    url: str,
    *,
    clock: Clock | None = None,
    sync: str = "always",
    timeout: float | None = None,
    threads: Threads | None = None,
    shared: str | None = None,
    locked: Callable[[], None] = lambda: None,
) -> SlateBackend:
    """Open the store at `slate:DIR` or `slate:s3://bucket/prefix`; creates it if it does not exist.

    shared: for a bucket: the folder with the lock of this machine's processes
    locked: called once the lock is taken
    """
    address = parse(url)
    router = parse_qs(url.partition("?")[2]).get("router", ["on"])[-1]
    if router not in ("on", "off"):
        raise InvalidArgument(
            f"router={router!r}: give on, or off if `penstock route` delivers published messages"
        )
    seconds = timeout or TIMEOUT
    place: Folder | BucketPlace = Folder(address.where, sync)
    if address.is_bucket:
        place = BucketPlace(address.where, seconds, shared, address.instance)
    try:
        return SlateBackend(place, address.log, clock or SystemClock(), seconds, threads, locked, router == "off")
    except PenstockError:
        raise
    except OSError as error:
        raise unavailable(error.filename or address.where, error) from error
