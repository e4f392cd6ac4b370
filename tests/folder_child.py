"""A process that uses a queue of a folder store until it is killed.

    python -m tests.folder_child LOG NAME FOLDER

As kill_child, of which it has the threads: what it asks and is told goes to the log at once.
"""

import os
import sys
import threading
import time
from random import Random

import penstock
from penstock.contract.store import Store
from penstock.stores.folder.backend import FolderBackend, open_folder
from tests.history import History
from tests.kill_child import QUEUE, Child


class FolderChild(Child):
    def __init__(self, backend: FolderBackend, queue: penstock.Queue, history: History, name: str) -> None:
        self.tended = backend
        self.queue = queue
        self.history = history
        self.name = name
        self.other_priority = -(2**63)

    def pack(self, random: Random, name: str) -> None:
        """Instead: what mover and reaper do."""
        while True:
            time.sleep(random.choice([0, 0.05, 0.2]))
            self.tended.tend()


def main(log: str, name: str, folder: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    backend = open_folder(folder)
    queue = Store("", backend).queue(QUEUE)
    history = History(
        penstock.SystemClock().now,
        queue.settings,
        name=name,
        write=lambda line: os.write(descriptor, line.encode()),
    )
    history.look(queue, reopened=True)
    FolderChild(backend, queue, history, name).start()
    print("ready", flush=True)  # noqa: T201 - the parent waits for this
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
