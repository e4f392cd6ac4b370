"""A disk in memory that knows what was synced, and can stop, fail and fill up at any operation.

The model, as hostile as a correct device and file system may be:

- A file has its current bytes, which the program reads, its durable bytes, which the device has, and between
  them the unsynced writes and truncations. A sync applies these to the durable bytes.
- A crash applies any of them: each write is lost, whole or torn (a beginning, an end, a block inside, all but a
  block, a beginning and then zeros to the new size), whatever became of the others. A gap reads as zeros.
  A disk with sectors tears between them only, but then in any way.
- A folder has current and durable names, and between them the unsynced changes of names. A file's own sync
  does nothing for its name. A crash keeps or loses each change, but not one that builds on a lost one: what
  is found under a name was there at some moment since its folder was synced.
- A rename is one change, until one of its two folders is synced; then the other side is still open. So a
  source folder synced first can leave the file under neither name, a target synced first under both.
- Attributes and the time of change are changes of a file as writes are: each is lost or kept by itself, whole.
- Reserved space is a file's own until the file is truncated or gone; a crash does not take it.
- A failing write may leave a beginning. A failing sync decides like a crash which unsynced changes reach the
  device and forgets the rest, as ext4, XFS and btrfs do: the program still reads them, and the next sync has
  nothing to do and "succeeds". Of folders it may also forget nothing, and the next sync tries again. A rename is
  forgotten as a whole: of half a one nobody could make up for the other.

Every call is one numbered operation. The same calls with the same seeds have the same outcome.
"""

import errno
import itertools
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Literal, Self

from penstock.system.files import Data, Kind, Status, StrPath

Keep = Literal["nothing", "some", "everything"]


class SimulatedCrash(BaseException):
    """The machine is off. Not an Exception, so that no handler of the product can swallow it."""


class Luck:
    """Decides which unsynced changes reach the device."""

    def __init__(self, random: Random, keep: Keep, sector: int = 1) -> None:
        self._random = random
        self._sector = sector
        self._tears = keep == "some"
        # Drawn anew for each crash, so that "nearly all" and "nearly none" come up however many changes wait.
        self._chance = {"nothing": 0.0, "some": random.random(), "everything": 1.0}[keep]

    def keeps(self) -> bool:
        return self._random.random() < self._chance

    def pieces(self, offset: int, size: int) -> list[tuple[int, int]]:
        """The parts (start, end) of a write of this size that are kept; an empty one only sets the size."""
        if self.keeps():
            return [(0, size)]
        if not self._tears or self._random.random() < 0.5:
            return []
        if self._sector > 1:
            return self._sectors(offset, size)
        cut = self._place(size)
        start, end = sorted((cut, self._place(size)))
        beginning, ending, inside = [(0, cut)], [(cut, size)], [(start, end)]
        all_but_inside, then_zeros = [(0, start), (end, size)], [(0, cut), (size, size)]
        return self._random.choice([beginning, ending, inside, all_but_inside, then_zeros])

    def _sectors(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Any sectors, nearly all or nearly none of them, or some that lie together; the new size too, or not."""
        first = offset // self._sector * self._sector
        borders = [max(offset, each) - offset for each in range(first, offset + size, self._sector)] + [size]
        chance = self._random.random()
        kept = [piece for piece in pairwise(borders) if self._random.random() < chance]
        if self._random.random() < 0.5:
            start = self._random.randrange(len(borders))
            kept = list(pairwise(borders[start : start + 1 + int(len(borders) ** self._random.random())]))
        return kept + self._random.choice([[], [(size, size)]])

    def _place(self, size: int) -> int:
        """Anywhere in a write, and as often near one of its ends: what is short there matters as what is long."""
        near = min(size, int((size + 1) ** self._random.random()) - self._random.randint(0, 1))
        return self._random.choice([self._random.randint(0, size), near, size - near])


CERTAINTY = Luck(Random(0), "everything")


@dataclass(frozen=True)
class Write:
    offset: int
    data: bytes

    def apply(self, content: bytearray, luck: Luck) -> None:
        for start, end in luck.pieces(self.offset, len(self.data)):
            content.extend(bytes(max(0, self.offset + start - len(content))))
            content[self.offset + start : self.offset + end] = self.data[start:end]


@dataclass(frozen=True)
class Truncation:
    size: int

    def apply(self, content: bytearray, luck: Luck) -> None:
        if luck.keeps():
            del content[self.size :]
            content.extend(bytes(max(0, self.size - len(content))))


@dataclass
class Facts:
    """Time of change and attributes of a file."""

    changed: int = 0  # nanoseconds since the epoch
    attributes: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> "Facts":
        return Facts(self.changed, dict(self.attributes))


@dataclass(frozen=True)
class NewFact:
    """An attribute, or without a name the time of change."""

    name: str | None
    value: bytes | int

    def apply(self, facts: Facts, luck: Luck) -> None:
        if not luck.keeps():
            return
        if self.name is None:
            facts.changed = int(self.value)
        else:
            assert isinstance(self.value, bytes)
            facts.attributes[self.name] = self.value


@dataclass(eq=False)
class FileNode:
    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Write | Truncation] = field(default_factory=list)
    locked_by: object = None  # the handle's own mark, not the handle, which would then never be forgotten
    reserved: int = 0  # the size up to which the file can grow without asking for space
    number: int = field(default_factory=itertools.count(1).__next__)
    facts: Facts = field(default_factory=Facts)
    durable_facts: Facts = field(default_factory=Facts)
    unsynced_facts: list[NewFact] = field(default_factory=list)

    def status(self, names: int) -> Status:
        """What tells the file from others and from itself after a change."""
        return Status(len(self.current), self.facts.changed, 0, names, self.number, False)

    def space(self) -> int:
        """The bytes that the file takes of the disk."""
        return max(len(self.current), self.reserved)

    def settle(self, luck: Luck) -> None:
        """Let the unsynced changes reach the device, those that luck keeps, and forget the others."""
        for change in self.unsynced:
            change.apply(self.durable, luck)
        self.unsynced.clear()

    def settle_facts(self, luck: Luck) -> None:
        """The same for times and attributes."""
        for fact in self.unsynced_facts:
            fact.apply(self.durable_facts, luck)
        self.unsynced_facts.clear()

    def after_crash(self, luck: Luck) -> "FileNode":
        content = bytearray(self.durable)
        for change in self.unsynced:
            change.apply(content, luck)
        facts = self.durable_facts.copy()
        for fact in self.unsynced_facts:
            fact.apply(facts, luck)
        return FileNode(
            content, bytearray(content), reserved=self.reserved, facts=facts, durable_facts=facts.copy()
        )


@dataclass(eq=False)
class FolderNode:
    current: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)
    changes: int = 0  # of names, by anyone


Node = FileNode | FolderNode
Place = tuple[FolderNode, str]
# What one change leaves under which names; None is nothing. A rename has two of them, any other change one.
NameChange = dict[Place, Node | None]


def set_name(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def kept_changes(changes: Iterable[NameChange], luck: Luck) -> Iterator[NameChange]:
    lost: set[Place] = set()
    for change in changes:
        if lost.isdisjoint(change) and luck.keeps():
            yield change
        else:
            lost.update(change)


def parts(path: StrPath) -> list[str]:
    return [name for name in posixpath.normpath(posixpath.join("/", path)).split("/") if name]


def os_error(number: int, path: StrPath) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


class SimulatedDisk:
    """A Disk with nothing on it but the root folder, where relative paths start too."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.operations = 0
        self.trace: list[tuple[int, str, str]] = []  # number, name, path
        self.crash_at: int | None = None
        self.capacity: int | None = None
        self.sector = 1  # bytes that are never torn
        self.has_attributes = True
        self.attribute_space = 4_000  # bytes of a file's attributes, about what ext4 has
        self.atomic_renames = False  # as journalling file systems have them: synced on one side is synced on both
        self.forgets_names = True  # what a failing sync of a folder has not synced
        self.open_nodes: list[FileNode] = []  # one for each open handle
        # Called with each operation's name and path before it, outside the mutex: who wants to may wait here.
        self.before_operation: Callable[[str, str], None] | None = None
        self._off = False
        self._failures: dict[int, int] = {}
        self._root = FolderNode()
        self._unsynced: list[NameChange] = []
        self._mutex = threading.RLock()

    @property
    def off(self) -> bool:
        """Whether the power was cut."""
        return self._off

    def fail_at(self, operation: int, error: int) -> None:
        """Let the operation of that number raise OSError with this errno."""
        self._failures[operation] = error

    def after_crash(self, random: Random, keep: Keep = "some") -> "SimulatedDisk":
        """Cut the power, if that is still to do, and return the disk as the next start finds it.

        It is one legal outcome, chosen by `random`; ask again for others. The new disk goes on with `random`.
        """
        self._off = True
        return self.if_it_crashed(random, keep)

    def if_it_crashed(self, random: Random, keep: Keep = "some") -> "SimulatedDisk":
        """The same for a power cut that does not happen: this disk goes on."""
        with self._mutex:
            luck = Luck(random, keep, self.sector)
            found: dict[FolderNode, dict[str, Node]] = {}
            for change in kept_changes(self._unsynced, luck):
                for (folder, name), node in change.items():
                    set_name(found.setdefault(folder, dict(folder.durable)), name, node)
            files: dict[FileNode, FileNode] = {}  # so that two names of one file stay that

            def copy(node: Node) -> Node:
                if isinstance(node, FolderNode):
                    return copy_folder(node)
                if node not in files:
                    files[node] = node.after_crash(luck)
                return files[node]

            def copy_folder(folder: FolderNode) -> FolderNode:
                names = {name: copy(node) for name, node in found.get(folder, folder.durable).items()}
                return FolderNode(names, dict(names))

            disk = SimulatedDisk(random)
            disk.capacity = self.capacity
            disk.sector = self.sector
            disk.has_attributes = self.has_attributes
            disk.attribute_space = self.attribute_space
            disk.atomic_renames = self.atomic_renames
            disk._root = copy_folder(self._root)
            return disk

    @contextmanager
    def operation(self, name: str, path: str, partial: bool = False) -> Iterator[bool]:
        """Count an operation; the body is what it does. A planned crash comes before or after the body.

        A planned failure comes before it too; a `partial` operation is instead told to do what failing leaves.
        """
        if self.before_operation is not None:
            self.before_operation(name, path)
        with self._mutex:
            if self._off:
                raise SimulatedCrash(f"{name} {path}: the machine is off")
            self.operations += 1
            self.trace.append((self.operations, name, path))
            crash = SimulatedCrash(f"operation {self.operations}: {name} {path}")
            crashing = self._off = self.operations == self.crash_at
            if crashing and self.random.random() < 0.5:
                raise crash
            error = None if crashing else self._failures.pop(self.operations, None)
            if error and not partial:
                raise os_error(error, path)
            try:
                yield error is not None
            finally:
                if crashing:
                    raise crash
            if error:
                raise os_error(error, path)

    def open(
        self,
        path: StrPath,
        *,
        create: bool = False,
        exclusive: bool = False,
        follow: bool = False,
        mode: int = 0o666,
    ) -> "SimulatedFile":
        with self.operation("open", str(path)):
            folder, name = self._place(path)
            node = folder.current.get(name)
            if node is None:
                if not (create or exclusive):
                    raise os_error(errno.ENOENT, path)
                node = FileNode()
                self._change_names({(folder, name): node})
            elif exclusive:
                raise os_error(errno.EEXIST, path)
            elif isinstance(node, FolderNode):
                raise os_error(errno.EISDIR, path)
            self.open_nodes.append(node)
            return SimulatedFile(self, str(path), node)

    def exists(self, path: StrPath) -> bool:
        with self.operation("exists", str(path)):
            try:
                self._find(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def is_folder(self, path: StrPath) -> bool:
        with self.operation("is_folder", str(path)):
            try:
                return isinstance(self._find(path), FolderNode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def kind(self, path: StrPath) -> Kind | None:
        with self.operation("kind", str(path)):
            try:
                return "folder" if isinstance(self._find(path), FolderNode) else "file"
            except (FileNotFoundError, NotADirectoryError):
                return None

    def listdir(self, path: StrPath) -> list[str]:
        with self.operation("listdir", str(path)):
            names = list(self._folder(path).current)
            self.random.shuffle(names)  # whoever relies on an order finds out
            return names

    def listfiles(self, path: StrPath) -> list[str]:
        with self.operation("listfiles", str(path)):
            there = self._folder(path).current.items()
            names = [name for name, node in there if isinstance(node, FileNode)]
            self.random.shuffle(names)
            return names

    def listlinks(self, path: StrPath) -> list[str]:
        with self.operation("listlinks", str(path)):
            self._folder(path)
            return []  # this disk has none

    def mkdir(self, path: StrPath) -> None:
        with self.operation("mkdir", str(path)):
            folder, name = self._place(path)
            if name in folder.current:
                raise os_error(errno.EEXIST, path)
            self._change_names({(folder, name): FolderNode()})

    def rmdir(self, path: StrPath) -> None:
        with self.operation("rmdir", str(path)):
            if self._folder(path).current:
                raise os_error(errno.ENOTEMPTY, path)
            self._change_names({self._place(path): None})

    def rename(self, source: StrPath, target: StrPath) -> None:
        with self.operation("rename", f"{source} -> {target}"):
            from_place, to_place = self._place(source), self._place(target)
            node = self._find(source)
            replaced = to_place[0].current.get(to_place[1])
            if isinstance(node, FolderNode):
                raise NotImplementedError("the simulated disk renames files only")
            if isinstance(replaced, FolderNode):
                inside = parts(source)[: len(parts(target))] == parts(target)
                raise os_error(errno.ENOTEMPTY if inside else errno.EISDIR, target)
            if replaced is not node:
                self._change_names({from_place: None, to_place: node})

    def link(self, source: StrPath, target: StrPath) -> None:
        with self.operation("link", f"{source} -> {target}"):
            node = self._find(source)
            folder, name = self._place(target)
            if name in folder.current:
                raise os_error(errno.EEXIST, target)
            if isinstance(node, FolderNode):
                raise os_error(errno.EPERM, source)
            self._change_names({(folder, name): node})

    def unlink(self, path: StrPath) -> None:
        with self.operation("unlink", str(path)):
            if isinstance(self._find(path), FolderNode):
                raise os_error(errno.EISDIR, path)
            self._change_names({self._place(path): None})

    def sync_folder(self, path: StrPath) -> None:
        with self.operation("sync_folder", str(path), partial=True) as failing:
            if failing and not self.forgets_names:
                return
            here = self._changes_synced_with(self._folder(path), self.atomic_renames or failing)
            self._unsynced = [change for change in self._unsynced if change]  # a rename's other side stays open
            for change in kept_changes(here, Luck(self.random, "some" if failing else "everything")):
                for (folder, name), node in change.items():
                    set_name(folder.durable, name, node)

    def _changes_synced_with(self, folder: FolderNode, whole: bool) -> list[NameChange]:
        """Take them out of what is unsynced: those in the folder, and of whole renames what they build on."""
        if not whole:
            return [
                {place: change.pop(place) for place in list(change) if place[0] is folder}
                for change in self._unsynced
            ]
        needed: set[Place] = set()
        taken: list[NameChange] = []
        for change in reversed(self._unsynced):
            if any(place[0] is folder for place in change) or not needed.isdisjoint(change):
                needed.update(change)
                taken.append(dict(change))
                change.clear()
        return taken[::-1]

    def sync_files(self, paths: Sequence[StrPath]) -> None:
        for path in paths:
            with self.operation("sync_file", str(path), partial=True) as failing:
                luck = Luck(self.random, "some" if failing else "everything", self.sector)
                node = self._file(path)
                node.settle(luck)
                node.settle_facts(luck)

    def status(self, path: StrPath) -> Status:
        with self.operation("status", str(path)):
            node = self._find(path)
            if isinstance(node, FolderNode):  # every change of names shows
                return Status(0, node.changes, node.changes, 1, id(node), True)
            return node.status(self.names_of(node))

    def set_changed(self, path: StrPath, time: int) -> None:
        with self.operation("set_changed", str(path)):
            self._set_fact(path, NewFact(None, time))

    def real(self, path: StrPath) -> str:
        return str(path)

    def copy_facts(self, source: StrPath, target: StrPath) -> None:
        if self.has_attributes:
            for name, value in self.attributes(source).items():
                self.set_attribute(target, name, value)

    def attributes(self, path: StrPath) -> dict[str, bytes]:
        with self.operation("attributes", str(path)):
            self._check_attributes(path)
            return dict(self._file(path).facts.attributes)

    def attribute(self, path: StrPath, name: str) -> bytes | None:
        with self.operation("attribute", f"{path} {name}"):
            self._check_attributes(path)
            return self._file(path).facts.attributes.get(name)

    def set_attribute(self, path: StrPath, name: str, value: bytes) -> None:
        with self.operation("set_attribute", f"{path} {name}"):
            self._check_attributes(path)
            others = self._file(path).facts.attributes.items()
            used = sum(len(other) + len(held) + 20 for other, held in others if other != name)
            if used + len(name) + len(value) + 20 > self.attribute_space:
                raise os_error(errno.ENOSPC, path)
            self._set_fact(path, NewFact(name, value))

    def may_change(self, path: StrPath, *, times: bool = True) -> bool:
        return True

    def is_being_written(self, path: StrPath) -> bool:
        with self.operation("is_being_written", str(path)):
            return self._file(path) in self.open_nodes

    def _set_fact(self, path: StrPath, fact: NewFact) -> None:
        node = self._file(path)
        fact.apply(node.facts, CERTAINTY)
        node.unsynced_facts.append(fact)

    def _check_attributes(self, path: StrPath) -> None:
        if not self.has_attributes:
            raise os_error(errno.ENOTSUP, path)

    def names_of(self, wanted: FileNode) -> int:
        folders, names = [self._root], 0
        for folder in folders:
            folders += [node for node in folder.current.values() if isinstance(node, FolderNode)]
            names += sum(node is wanted for node in folder.current.values())
        return names

    def is_synced(self) -> bool:
        """Whether a power cut would lose nothing, so that all its outcomes are the same. No operation."""
        with self._mutex:
            folders = [self._root]
            for folder in folders:  # without an open change of names, what is current is durable
                nodes = folder.current.values()
                folders += [node for node in nodes if isinstance(node, FolderNode)]
                files = [node for node in nodes if isinstance(node, FileNode)]
                if any(node.unsynced or node.unsynced_facts for node in files):
                    return False
            return not self._unsynced

    def files(self) -> dict[str, bytes]:
        """Every file that the program sees, and every folder with a slash behind it. No operation."""
        found: dict[str, bytes] = {}

        def look(folder: FolderNode, path: str) -> None:
            for name, node in folder.current.items():
                if isinstance(node, FolderNode):
                    found[f"{path}{name}/"] = b""
                    look(node, f"{path}{name}/")
                else:
                    found[path + name] = bytes(node.current)

        with self._mutex:
            look(self._root, "/")
        return found

    def node(self, path: StrPath) -> FileNode:
        """A file as the device has it, and what is still to reach that. No operation."""
        node = self._find(path) if path in self.files() else FileNode()
        assert isinstance(node, FileNode)
        return node

    def room(self) -> int | None:
        """How many more bytes the disk can hold; None: any number."""
        if self.capacity is None:
            return None
        nodes = dict.fromkeys(self.open_nodes)  # an unlinked file takes space until it is closed
        folders = [self._root]
        for folder in folders:
            folders += [node for node in folder.current.values() if isinstance(node, FolderNode)]
            nodes |= {node: None for node in folder.current.values() if isinstance(node, FileNode)}
        return max(0, self.capacity - sum(node.space() for node in nodes))

    def _find(self, path: StrPath) -> Node:
        node: Node = self._root
        for name in parts(path):
            if not isinstance(node, FolderNode):
                raise os_error(errno.ENOTDIR, path)
            if name not in node.current:
                raise os_error(errno.ENOENT, path)
            node = node.current[name]
        return node

    def _file(self, path: StrPath) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise os_error(errno.EISDIR, path)
        return node

    def _folder(self, path: StrPath) -> FolderNode:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: StrPath) -> Place:
        *folders, name = parts(path) or [""]
        if not name:
            raise os_error(errno.EEXIST, path)  # the root
        return self._folder("/".join(folders)), name

    def _change_names(self, change: NameChange) -> None:
        for (folder, name), node in change.items():
            set_name(folder.current, name, node)
            folder.changes += 1
        self._unsynced.append(change)


class SimulatedFile:
    """A File of a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._mark = object()
        self._closed = False

    def size(self) -> int:
        with self._operation("size"):
            return len(self._node.current)

    def read(self, offset: int, size: int) -> bytes:
        with self._operation("read"):
            if offset < 0 or size < 0:
                raise os_error(errno.EINVAL, self.path)
            return bytes(self._node.current[offset : offset + size])

    def read_cached(self, offset: int, size: int) -> bytes | None:
        return self.read(offset, size)

    def append(self, data: Data, *, sync: bool = False) -> int:
        with self._operation("append", partial=True) as failing:
            offset = len(self._node.current)
            self._write(offset, self._beginning(data) if failing else data)
        if sync:
            self.sync()
        return offset

    def write(self, offset: int, data: Data) -> None:
        with self._operation("write", partial=True) as failing:
            self._write(offset, self._beginning(data) if failing else data)

    def write_through(self, offset: int, data: Data) -> None:
        self.write(offset, data)
        self.sync()

    def truncate(self, size: int) -> None:
        with self._operation("truncate"):
            if size < 0:
                raise os_error(errno.EINVAL, self.path)
            self._node.reserved = 0
            self._change(Truncation(size))

    def reserve(self, size: int) -> None:
        with self._operation("reserve"):
            room = self._disk.room()
            if room is not None and size - self._node.space() > room:
                raise os_error(errno.ENOSPC, self.path)
            self._node.reserved = max(self._node.reserved, size)

    def sync(self) -> None:
        with self._operation("sync", partial=True) as failing:
            self._node.settle(Luck(self._disk.random, "some" if failing else "everything", self._disk.sector))

    def lock(self, *, wait: bool = False) -> bool:
        while True:  # who waits asks again: each time others may go first
            with self._operation("lock"):
                if self._node.locked_by is None:
                    self._node.locked_by = self._mark
                if self._node.locked_by is self._mark or not wait:
                    return self._node.locked_by is self._mark

    def status(self) -> Status:
        with self._operation("status"):
            return self._node.status(self._disk.names_of(self._node))

    def set_changed(self, time: int) -> None:
        with self._operation("set_changed"):
            self._node.facts.changed = time  # lost by a crash: nobody syncs times of open files

    def unlock(self) -> None:
        with self._operation("unlock"):
            self._unlock()

    def close(self) -> None:
        with self._disk.operation("close", self.path, partial=True):  # a close that fails has closed
            if not self._closed:
                self._closed = True
                self._unlock()
                self._disk.open_nodes.remove(self._node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Like the system's file: the last reference closes it. Not an operation: its moment is arbitrary.
        if not self._closed:
            self._closed = True
            self._unlock()
            self._disk.open_nodes.remove(self._node)

    @contextmanager
    def _operation(self, name: str, partial: bool = False) -> Iterator[bool]:
        with self._disk.operation(name, self.path, partial) as failing:
            if self._closed:
                raise os_error(errno.EBADF, self.path)
            yield failing

    def _beginning(self, data: Data) -> Data:
        return data[: self._disk.random.randint(0, len(data))]

    def _write(self, offset: int, data: Data) -> None:
        if offset < 0:
            raise os_error(errno.EINVAL, self.path)
        room = self._disk.room()
        fitting = len(data) if room is None else max(0, self._node.space() + room - offset)
        if written := bytes(data[:fitting]):
            self._change(Write(offset, written))
        if len(written) < len(data):
            raise os_error(errno.ENOSPC, self.path)

    def _change(self, change: Write | Truncation) -> None:
        self._node.facts.changed += 1  # as no clock would: every change shows. A crash loses it
        change.apply(self._node.current, CERTAINTY)
        self._node.unsynced.append(change)

    def _unlock(self) -> None:
        if self._node.locked_by is self._mark:
            self._node.locked_by = None
