"""Routing in bulk: the owner of a slate store delivers matches that Spark tasks have found."""

import os
import random
from array import array
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.contract.store import Store
from penstock.stores.slate import routing
from penstock.stores.slate.log_tables import MATCHED, LogFollower, matches_in
from penstock.stores.slate.routing import Matches, Wanted, subject_of, wanted_of
from penstock.stores.slate.store import SlateBackend, open_slate

OFF = "?router=off"


def opened(folder: Path, options: str = OFF) -> tuple[Store, SlateBackend]:
    url = f"slate:{folder}{options}"
    backend = open_slate(url)
    return Store(url, backend), backend


def matches_of(backend: SlateBackend, start: int, end: int) -> Matches:
    """The matches that a routing job finds in a range of the log."""
    wanted: dict[str, list[Wanted]] = {}
    with backend._log.lock:
        for published in backend._log.entries(start):
            if published.metadata.id >= end:
                break
            for queue, subscriber in backend._router._subscribers.items():
                if subscriber.wanted.matches(subject_of(published)):
                    wanted.setdefault(queue, []).append(wanted_of(published))
    by_columns = {queue: [array("q", each) for each in zip(*rows, strict=True)] for queue, rows in wanted.items()}
    return routing.decode_matches(routing.encode_matches(Matches(start, end, by_columns)))


def test_tasks_find_by_columns_what_the_router_finds_message_by_message(tmp_path: Path) -> None:
    filters = [
        "topic = 'a'", "topic IN ('a', 'b') AND n > 2", "n = 3", "n = 3 OR topic = 'b'", "priority = 2",
        "size = 5", "topic LIKE '%b%'", "topic IS NULL", "NOT (n < 4)", "note = 'h7'",
    ]  # fmt: skip
    chance = random.Random(1)
    store, backend = opened(tmp_path)
    with store:
        for number, text in enumerate(filters):
            store.create(f"queue-{number}", filter=text)
        store.create("direct").put(b"no match of this")
        for _ in range(200):
            headers = {
                name: chance.choice(("a", "b", "3", "+03", "7"))
                for name in ("topic", "n")
                if chance.random() < 0.7
            }
            if chance.random() < 0.1:  # too many for one entry: some are packed
                headers |= {f"note{number}": "x" for number in range(252)} | {"note": "h7"}
            store.publish(
                b"." * chance.randrange(8), headers=headers, priority=chance.randrange(4),
                delay=chance.choice((0, 10)), retention=chance.choice((None, 0, 60, 60.5)),
            )  # fmt: skip
        with closing(LogFollower(f"slate:{tmp_path}{OFF}", MATCHED, True, os.getpid())) as follower:
            end = follower.end()
            parts = follower.parts(1, end)
            found = matches_in(pa.Table.from_batches([each for part in parts for each in part.read(MATCHED)]))
        expected = matches_of(backend, 1, end)
        assert {queue: [list(each) for each in found.queues[queue]] for queue in sorted(found.queues)} == {
            queue: [list(each) for each in expected.queues[queue]] for queue in sorted(expected.queues)
        }
        assert len(expected.queues) == len(filters)


def publish(store: Store, numbers: Sequence[int]) -> None:
    for number in numbers:
        store.publish(str(number), headers={"even": str(number % 2 == 0).lower()})


def payloads(store: Store, queue: str) -> list[int]:
    return [int(message.payload) for message in store.queue(queue).messages()]


def test_without_its_router_a_store_keeps_what_is_published_in_the_log(tmp_path: Path) -> None:
    store, backend = opened(tmp_path)
    with store:
        store.create("even", filter="even = 'true'")
        store.create("all", filter="even IS NOT NULL")
        publish(store, range(10))
        assert payloads(store, "all") == []
        assert backend.owner().route(matches_of(backend, 1, 6)) == {"even": 3, "all": 5}
        assert backend.owner().route(matches_of(backend, 1, 6)) == {}
        assert backend.owner().route(matches_of(backend, 3, 9)) == {"even": 1, "all": 3}
        assert payloads(store, "even") == [0, 2, 4, 6]
    store, backend = opened(tmp_path)
    with store:
        assert payloads(store, "all") == list(range(8))
        publish(store, [10, 11])
    with penstock.open(f"slate:{tmp_path}") as store:  # whose own router goes on
        assert payloads(store, "all") == list(range(12))
        assert payloads(store, "even") == [0, 2, 4, 6, 8, 10]


def test_what_waits_is_still_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    store, backend = opened(tmp_path)
    with store:
        store.create("all", filter="even IS NOT NULL")
        publish(store, range(5))
    store, backend = opened(tmp_path)
    with store:
        assert payloads(store, "all") == []
        backend.owner().route(matches_of(backend, 1, 6))
        assert payloads(store, "all") == list(range(5))


def test_what_was_left_out_is_looked_up_in_the_log(tmp_path: Path) -> None:
    store, backend = opened(tmp_path)
    with store:
        store.create("all", filter="even IS NOT NULL")
        publish(store, range(10))
        backend.owner().route(matches_of(backend, 7, 11))
        assert payloads(store, "all") == list(range(10))


def test_a_full_queue_holds_up_only_itself_and_catches_up(tmp_path: Path) -> None:
    store, backend = opened(tmp_path)
    with store:
        small = store.create("small", filter="even IS NOT NULL", max_size=3)
        store.create("all", filter="even IS NOT NULL")
        publish(store, range(10))
        assert backend.owner().route(matches_of(backend, 1, 6)) == {"small": 3, "all": 5}
        backend.owner().route(matches_of(backend, 6, 11))
        assert payloads(store, "all") == list(range(10))
        had = []
        while messages := small.claim(2):
            had += [int(message.payload) for message in messages]
            small.ack(*messages)
        assert had == list(range(10))


def test_what_is_put_while_something_waits_to_be_routed_comes_after_it(tmp_path: Path) -> None:
    store, backend = opened(tmp_path)
    with store:
        queue = store.create("all", filter="even IS NOT NULL")
        publish(store, [0, 1])
        queue.put("2")
        publish(store, [3])
        later = store.create("later", filter="even IS NOT NULL")
        publish(store, [4])
        backend.owner().route(matches_of(backend, 1, backend._log.end))
        assert payloads(store, "all") == [0, 1, 2, 3, 4]
        assert payloads(store, later.name) == [4]
