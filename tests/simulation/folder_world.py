"""A folder store on a simulated machine, whose processes have names and may be gone."""

import itertools
import zlib

from penstock import Message
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.stores.folder import layout
from penstock.stores.folder.backend import open_folder
from tests.simulated_disk import SimulatedDisk
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import FOLDER, World

PLACES = itertools.count(1)
BALLAST = 1_000  # bytes


class SimulatedNeighbours:
    """One process of this machine; those of other machines are those that were there before it stopped."""

    def __init__(self, machine: str, number: int, scheduler: Scheduler) -> None:
        self.name = f"{machine}.{number}"
        self._machine = machine
        self._number = number
        self._scheduler = scheduler

    def is_gone(self, name: str, idle: float) -> bool:
        """Of this machine, those that came before this one: a world has one store open at a time."""
        machine, _, number = name.rpartition(".")
        return machine != self._machine or int(number) < self._number

    def has_stopped(self, name: str) -> bool:
        return not name.startswith(f"{self._machine}.")

    def idle(self, time: int) -> float:
        return 0.0

    def pause(self) -> None:
        self._scheduler.pause()


class FolderWorld(World):
    """A world with a folder store."""

    # A lease counts from the beginning of its claim, which takes a while here: it must not end before that does.
    leases = extensions = (60, 1_000)
    longest = 1_000
    place = staticmethod(lambda uid: next(PLACES))  # ids have none: they just differ

    def __init__(self, seed: object, disk: SimulatedDisk | None = None, segment_size: int = 0) -> None:
        super().__init__(seed, disk, segment_size)
        self._machine = f"machine{zlib.crc32(str(seed).encode()):08x}"
        self._processes = itertools.count(1)
        self.opened = 0

    def _open(self) -> None:
        neighbours = SimulatedNeighbours(self._machine, next(self._processes), self.scheduler)
        self.backend = open_folder(
            FOLDER,
            clock=self.clock,
            disk=self.disk,
            threads=self.scheduler,
            neighbours=neighbours,
            ballast=BALLAST,
        )
        self._store = Store(FOLDER, self.backend)
        if "default" not in self.promises:
            self._promise("default", Settings())

    def pack(self, name: str) -> None:
        """Instead: unlink what is settled, bring back what is due."""
        self.attempt(self.backend.tend, None)

    def check_document(self, listing: dict[str, list[Message]]) -> None:
        """Anyone who lists the folders sees each message once, in its place, with its payload as the content."""
        files = self.disk.files()
        seen: dict[str, list[bytes]] = {}
        for path, content in files.items():
            parts = path.removeprefix(f"{FOLDER}/").split("/")
            if path.endswith("/") or not path.startswith(FOLDER):
                continue
            if parts[0] == layout.QUEUES:
                assert len(parts) == 3, f"{path} is no message"
                seen.setdefault(parts[2], []).append(content)
            elif parts[0] in (layout.DELAY, layout.FAILED):
                seen.setdefault(parts[1].partition(":")[2], []).append(content)
            assert parts[0] != layout.NEW, f"{path} was left behind"
            assert not path.startswith(f"{FOLDER}/{layout.HELD}/"), f"{path} was left behind"
        for messages in listing.values():
            for message in messages:
                if message.state != "done":
                    assert seen.pop(message.id) == [message.payload]
        assert not seen, f"files that are no messages: {seen}"


class CrowdedWorld(FolderWorld):
    """The same used by many at once.

    What one is putting comes after what others do before it is there, and what one is about to claim is hidden.
    """

    prompt = False
