"""A store that people and programs use at the same time, and the answers that each of them got.

Programs ask through a history. What a person does is recorded as an operation that was never answered: it may have
taken effect at any time until the store is opened again. What a person wrote must come to light by then.
"""

import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from errno import EIO, ENOSPC
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock import Draft, PenstockError, SimulatedClock
from penstock.contract.settings import Settings
from penstock.system.clock import SteadyClock
from penstock.system.files import SystemDisk, SystemFile
from tests.history import History

QUEUE = "jobs"
SETTINGS = Settings(max_attempts=4)
NOBODY = 65_534
_CLIENTS = 3
_Calls = tuple[tuple[type, tuple[str, ...]], ...]
_CHANGES: _Calls = (
    (SystemFile, ("write", "write_through", "append", "truncate", "reserve", "sync", "set_changed")),
    (
        SystemDisk,
        (
            *("open", "rename", "link", "unlink", "mkdir", "rmdir", "copy_facts"),
            *("sync_folder", "sync_files", "set_attribute", "set_changed"),
        ),
    ),
)
_LOOKS: _Calls = (
    (SystemFile, ("read", "size", "status")),
    (SystemDisk, ("open", "listdir", "listfiles", "status", "attributes", "attribute")),
)


class World:
    """One store with several clients, all of which take their steps one after the other."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.kind, self.random = kind, Random(seed)
        self.home = Path(tempfile.mkdtemp(dir=folder))
        self.home.chmod(0o755)
        self.folder = self.home / "store"
        self.url = f"{kind}:{self.folder}"
        self.clock = SimulatedClock()
        self.time = SteadyClock(self.clock)
        self.written: set[bytes] = set()  # payloads that people wrote and no program has seen yet
        self.removed: set[bytes] = set()  # by people
        self._children = self._deeds = 0
        self._payloads = 0
        self._log: list[str] = []
        self.history = History(self.time.now, SETTINGS, prompt=False)
        with penstock.open(self.url, clock=self.clock) as store:
            store.create(QUEUE, **SETTINGS)
        self.clients = [penstock.open(self.url, clock=self.clock) for _ in range(_CLIENTS)]

    # Actions of programs

    def queue(self) -> penstock.Queue:
        """The queue as one of the clients has it."""
        return penstock.Queue(self.random.choice(self.clients), QUEUE)

    def payload(self) -> bytes:
        self._payloads += 1
        return b"payload %d" % self._payloads

    def operate(self, history: History, queue: penstock.Queue, takes: bool = True) -> None:
        """An operation; an error of Penstock is an answer. Who `takes` nothing only looks at what is available."""
        random = self.random
        receipts = list(history.receipts)[-10:]
        # A folder store's processes notice a lease that another has made shorter only when it would have ended.
        extend = partial(history.extend, lease=600 if self.kind == "folder" else 30)
        settles: list[Callable[..., object]] = [history.ack, history.ack, history.fail, history.release, extend]
        settle = random.choice(settles)
        skips = self.kind == "folder" and not takes
        redrive: Callable[..., object] = partial(self._redrive_some, history) if skips else history.redrive
        operations: list[Callable[[], object]] = [
            lambda: history.put(queue, Draft(self.payload(), random.choice([0, 0, 3]))),
            lambda: history.put(queue, Draft(self.payload(), delay=random.choice([1, 40]), retention=3_000)),
            lambda: history.put_many(queue, [self.payload() for _ in range(random.randint(2, 5))]),
            lambda: history.put_many(queue, [Draft(self.payload(), group=random.choice("ab")) for _ in range(2)]),
            lambda: (
                history.claim(queue, random.randint(1, 3), random.choice([5, 30, 600]))
                if takes
                else list(queue.messages())
            ),
            lambda: history.pop(queue) if takes else list(queue.peek(9)),
            lambda: settle(queue, *random.sample(receipts, min(len(receipts), random.randint(1, 2)))),
            lambda: redrive(queue),
        ]
        try:
            random.choice(operations)()
        except PenstockError as error:
            self.note(f"{type(error).__name__}: {error}")

    def _redrive_some(self, history: History, queue: penstock.Queue) -> None:
        """Redrive as another user, without an answer: it would say nothing of the messages that are skipped."""
        name = history._next_name()
        history._record({"event": "start", "op": name, "at": self.time.now(), "do": "redrive", "ids": []})
        queue.redrive()

    def step(self) -> None:
        """One step of a client."""
        self._elapse()
        self.operate(self.history, self.queue())

    def put(self) -> None:
        """One step of a client that takes nothing."""
        self._elapse()
        try:
            self.history.put(self.queue(), self.payload())
        except PenstockError as error:
            self.note(f"{type(error).__name__}: {error}")

    def _elapse(self) -> None:
        """In a folder store a process sees within a second what others have done."""
        if self.kind == "folder":
            self.clock.advance(1.001)

    def child(
        self,
        prepare: Callable[[], object],
        operations: int,
        nobody: bool = False,
        url: str | None = None,
        queue: str = QUEUE,
    ) -> None:
        """Another process does some of that, and does not come to its end if what was prepared ends it."""
        self._children += 1
        self._elapse()
        self._record_time()
        told, tell = os.pipe()  # a file might be full
        pid = os.fork()
        if not pid:
            status = 1
            os.close(told)
            try:
                signal.alarm(120)  # a process that hangs ends, and that is told
                if nobody and not os.getuid():  # which takes nothing, as it skips what it may not use
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                name = f"child {self._children}"
                write: Callable[[str], object] = lambda line: os.write(tell, line.encode())  # noqa: E731
                history = History(self.time.now, SETTINGS, name=name, prompt=False, write=write)
                history.receipts |= self.history.receipts
                prepare()
                try:
                    with penstock.open(url or self.url, clock=self.clock) as store:
                        for _ in range(operations):
                            self.operate(history, penstock.Queue(store, queue), takes=not nobody)
                except PenstockError as error:
                    self.note(f"{type(error).__name__}: {error}")
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(tell)
        with open(told, newline="\n") as lines:
            self.history.feed(lines)
        self._payloads += 100  # the child's
        self._elapse()
        _, ended = os.waitpid(pid, 0)
        assert ended == 0 or os.WTERMSIG(ended) == signal.SIGKILL, f"a child ended with {ended}, see above"

    # Actions of people

    def note(self, what: str) -> None:
        """Log an action, for the report of a failure."""
        self._log.append(what)

    def shell(self, command: str, **words: object) -> None:
        """A person's command, in the folder of the store."""
        text = command.format(**words)
        self.note(f"$ {text}")
        subprocess.run(["sh", "-c", text], cwd=self.folder, check=True, stderr=subprocess.DEVNULL)

    def writes(self, payload: bytes, name: str | None = None) -> None:
        """A person puts a message into a file; `name`: as a file of its own, whose name becomes a header."""
        headers = {} if name is None else {"file": name}
        draft = {"payload": payload.decode(), "headers": headers, "priority": 0, "delay": 0, "retention": None}
        self._by_hand("put", drafts=[{**draft, "key": None, "created_at": None}])
        self.written.add(payload)

    def removes(self, id: str) -> None:  # noqa: A002
        """A person takes a message out, and with it all that is known of its receipts."""
        self._by_hand("remove", ids=[id])
        for receipt in [receipt for receipt, held in self.history.receipts.items() if held == id]:
            del self.history.receipts[receipt]

    def _by_hand(self, do: str, **asked: Any) -> None:
        self._deeds += 1
        name = f"hand {self._deeds}"
        self.history._record({"event": "start", "op": name, "at": self.time.now(), "do": do, **asked})
        self.history._record({"event": "unknown", "op": name, "at": self.time.now(), "error": "a person's"})

    # Checks

    def reopen(self) -> None:
        """Close every client and open it again."""
        self._record_time()
        for client in self.clients:
            client.close()
        self.clients = [penstock.open(self.url, clock=self.clock) for _ in range(_CLIENTS)]
        for client in self.clients:
            penstock.Queue(client, QUEUE).counts()  # and know what time it is

    def _record_time(self) -> None:
        """Who opens the store while the clock is behind it knows only the time that was recorded."""
        if self.time.now() > self.clock.now():
            self.note("a put, so that the time is recorded")
            self._elapse()
            self.history.put(self.queue(), self.payload())

    def check(self) -> None:
        """Hold the store to its history, after a restart."""
        self.reopen()
        self.note("checked")
        self._see()
        self.history.reopened(penstock.Queue(self.clients[0], QUEUE))
        self.written.clear()

    def _see(self) -> None:
        listed = {each.payload for each in penstock.Queue(self.clients[0], QUEUE).messages()}
        told = {
            message["payload"].encode("latin-1")
            for event in self.history._events
            if event["event"] == "told"
            for message in event.get("messages", ())
        }
        lost = self.written - listed - told - self.removed
        popped = {event["op"] for event in self.history._events if event.get("do") == "pop"}
        answered = {event["op"] for event in self.history._events if event["event"] in ("told", "refused")}
        # A pop that was never answered may have taken one, of which the files then tell.
        assert lost <= self._taken(), f"a person wrote {lost}, and nobody ever saw it"
        assert len(lost) <= len(popped - answered), f"a person wrote {lost}, and nobody asked for it"

    def _taken(self) -> set[bytes]:
        """What was taken for good, by the store's files."""
        if self.kind == "text":
            lines = (self.folder / f"{QUEUE}.tq").read_bytes().split(b"\n")
            return {line[1:] for line in lines if line.startswith(b"=")}
        return {path.read_bytes() for path in (self.folder / "remove").iterdir() if is_plain(path)}

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def story(self) -> str:
        """The latest actions."""
        return "\n".join(self._log[-60:])

    # Faults of a process

    def kill_at(self, change: int) -> Callable[[], None]:
        """kill -9 before a change to a file."""
        return lambda: before(change, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def fail_at(self, call: int, looking: bool = False) -> Callable[[], None]:
        """One error of the disk, at a change or at a look."""

        def fail() -> None:
            raise OSError(EIO, "Input/output error")

        return lambda: before(call, fail, _LOOKS if looking else _CHANGES)

    def full_from(self, change: int) -> Callable[[], None]:
        """From a change on there is no space for anything new; what is there can be written over."""

        def fill() -> None:
            for kind, name, grows in (
                (SystemFile, "append", lambda file, data, **_: len(data) > 0),
                (SystemFile, "write", lambda file, offset, data: offset + len(data) > file.size()),
                (SystemFile, "write_through", lambda file, offset, data: offset + len(data) > file.size()),
                (SystemFile, "reserve", lambda file, size: True),
                (SystemDisk, "mkdir", lambda disk, path: True),
                (SystemDisk, "open", lambda disk, path, create=False, **_: create and not disk.exists(path)),
                (SystemDisk, "set_attribute", lambda disk, path, name, value: len(value) > 0),
            ):
                setattr(kind, name, _without_space(getattr(kind, name), grows))

        return lambda: before(change, fill)

    def full_at(self, size: int) -> Callable[[], None]:
        """Files cannot grow beyond a size, as on a full disk."""

        def limit() -> None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        return limit


def _without_space(method: Callable[..., Any], grows: Callable[..., bool]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if grows(*arguments, **options):
            raise OSError(ENOSPC, "No space left on device")
        return method(*arguments, **options)

    return call


def before(number: int, act: Callable[[], object], calls: _Calls = _CHANGES) -> None:
    """Do something before a change of this process to a file, or another call, counted from now on."""
    left = [number]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                act()
            return method(*arguments, **options)

        return change

    for kind, names in calls:
        for name in names:
            if hasattr(kind, name):
                setattr(kind, name, counted(getattr(kind, name)))


def is_plain(path: Path) -> bool:
    """Whether it is a file, not something that was put there to disturb."""
    return stat.S_ISREG(path.lstat().st_mode)
