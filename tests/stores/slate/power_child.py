"""A process that follows, loads and copies a slate store until the power goes.

    python -m tests.stores.slate.power_child URL COPIES LOG NAME AFTER

LOG, on a disk that stays, gets a line for each thing that is about to be done, and for each that was done. AFTER
is where the follower goes on.
"""

import json
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock.contract.loads import Sent
from penstock.contract.message import Entry
from penstock.contract.streams import reader_name
from penstock.errors import PenstockError
from penstock.stores.slate.backups import backup
from penstock.stores.slate.store import SlateBackend
from penstock.wire.frames import encode_entries

QUEUE, LOADED, KEPT = "followed", "loaded", "kept"
FOLLOWER, STREAM = "f", "tail"
SIZES = (0, 20, 30, 300, 3_000, 70_000)  # the last lies beside the database


def payload_of(name: str, size: int) -> bytes:
    return (name + ":" + "x" * size).encode()


class Life:
    """What each thread does, and says."""

    def __init__(self, url: str, copies: str, log: str, name: str, after: str) -> None:
        self.url, self.copies, self.name, self.after = url, Path(copies), name, int(after)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.store = penstock.open(url, share=False)
        assert isinstance(self.store.backend, SlateBackend)
        self.backend = self.store.backend
        self.over = threading.Event()

    def say(self, *words: Any) -> None:
        os.write(self.log, json.dumps(words).encode() + b"\n")

    def put(self, dice: random.Random, number: int) -> None:
        """Messages come and are settled."""
        queue = self.store.queue(QUEUE)
        payload = payload_of(f"{self.name}.{number}", dice.choice(SIZES))
        put = queue.put(payload) if dice.random() < 0.7 else self.store.publish(payload, headers={"kind": "a"})
        self.say("put", int(put), zlib.crc32(payload))
        if dice.random() < 0.5:
            for message in queue.claim(dice.randint(1, 6), lease=600):
                message.ack()
        if dice.random() < 0.02:
            self.backend.collect()

    def follow(self, dice: random.Random, number: int) -> None:
        """One batch is read, then the next begins where it ended."""
        streams = self.backend.streams()
        streams.follow(QUEUE, STREAM, reader_name(), self.after)
        ahead = streams.ahead(QUEUE, FOLLOWER, self.after, 0, dice.randint(1, 20), 1 << 20)
        assert ahead.lost is None, ahead
        found = [
            [int(message.id), zlib.crc32(message.payload)]
            for message in entered(self.backend, self.after, ahead.until)
        ]
        self.say("read", self.after, ahead.until, found)
        self.after = ahead.until

    def load(self, dice: random.Random, number: int) -> None:
        """Some batches of some senders take effect at once."""
        uploads, run = self.backend.uploads(), f"{self.name}.{number}"
        load, sent = uploads.begin({}), []
        for part in range(dice.randint(1, 3)):
            batches = dice.randint(1, 3)
            for batch in range(batches):
                entries = [Entry(payload_of(f"{run}.{part}.{batch}", dice.choice(SIZES)))]
                uploads.add(load, f"{part}", batch, LOADED, encode_entries(entries))
            sent.append(Sent(f"{part}", batches))
        self.say("loading", run, sum(each.batches for each in sent))
        if dice.random() < 0.2:
            uploads.abort(load)
            return
        assert uploads.commit(load, sent, run).loaded
        self.say("loaded", run)

    def copy(self, dice: random.Random, number: int) -> None:
        """A copy has what was put before it began."""
        payload = payload_of(f"{self.name}.{number}", dice.choice(SIZES))
        self.say("kept", self.store.queue(KEPT).put(payload), zlib.crc32(payload))
        copy = self.copies / f"{self.name}.{number}"
        backup(self.url, copy, verify=dice.random() < 0.5)
        self.say("copied", copy.name, self.name, number)

    def run(self, what: Callable[[random.Random, int], None]) -> None:
        dice, number = random.Random(f"{self.name} {what.__name__}"), 0
        while not self.over.is_set():
            try:
                what(dice, number)
            except (OSError, PenstockError) as error:  # the power is off
                sys.stderr.write(f"{what.__name__}: {error}\n")
                return
            except AssertionError as error:
                self.say("broken", what.__name__, str(error))
                raise
            number += 1


def entered(backend: SlateBackend, after: int, until: int) -> list[penstock.Message]:
    """What a follower reads, page by page."""
    found: list[penstock.Message] = []
    while page := backend.streams().entered(QUEUE, FOLLOWER, after, until, 7):
        found += page
        after = int(page[-1].id)
    return found


def main(*arguments: str) -> None:
    life = Life(*arguments)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threads = [
        threading.Thread(target=life.run, args=(each,)) for each in (life.put, life.follow, life.load, life.copy)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
