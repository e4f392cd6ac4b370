"""Groups in a slate store's database: in log entries, and read from there only where a message has one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Draft, SimulatedClock, Store
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Messages, Publish, Put
from penstock.contract.settings import Settings
from penstock.stores.slate import bodies, extensions, recovery
from penstock.stores.slate import format as records
from penstock.stores.slate.doctor import examine
from penstock.stores.slate.extensions import GROUPED, LARGE
from penstock.stores.slate.loads import Frame, Load, new_name
from penstock.wire.frames import encode_entries
from tests.stores.slate.test_streams import LARGE as LARGE_PAYLOAD
from tests.stores.slate.test_streams import Life

LOG = records.log_prefix(records.LOG_KEY)


@pytest.fixture
def life(tmp_path: Path, clock: SimulatedClock) -> Iterator[Life]:
    life = Life(tmp_path / "data", clock)
    yield life
    life.store.close()


def groups(store: Store, queue: str = "default") -> list[str | None]:
    return [message.group for message in store.backend.run(Messages(queue))]


def put(store: Store, text: str, queue: str = "default") -> list[int]:
    """A message for each letter, in the group of that letter; dots have none."""
    entries = [Entry(b"x", group=None if letter == "." else letter) for letter in text]
    return [int(each) for each in store.backend.run(Put(queue, entries))]


def test_a_group_is_a_header_of_the_log_entry_and_a_flag_of_the_size(life: Life) -> None:
    queue = life.store.queue()
    queue.put_many([Draft(b"x", group="Läden"), Draft(b"y", headers={"a": "b"}), Draft(LARGE_PAYLOAD, group="g")])
    assert [message.headers for message in queue.messages()] == [{}, {"a": "b"}, {}]
    rows = life.rows()
    headers = [records.decode_metadata(rows[LOG + number.to_bytes(8)]).headers for number in (1, 2, 3)]
    assert [each.get("penstock.group") for each in headers] == ["Läden", None, "g"]
    sizes = extensions.decode_sizes(rows[b"\x01\x08default\x00"])
    assert [each.flags for each in sizes] == [GROUPED, 0, GROUPED | LARGE]
    assert groups(life.store) == ["Läden", None, "g"]


def test_a_message_with_the_most_headers_may_have_a_group(life: Life) -> None:
    headers = {f"header {number}": "x" for number in range(255)}
    life.store.queue().put(b"x", headers=headers, group="g" * 255)
    life.rows()
    [message] = life.store.queue().messages()
    assert (message.headers, message.group) == (headers, "g" * 255)


def test_only_messages_with_a_group_are_looked_up_in_the_log(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []
    real = bodies.numbered_rows

    def numbered_rows(database: object, prefix: bytes, seqs: list[int], near: int) -> object:
        looked_up.extend(seqs)
        return real(database, prefix, seqs, near)  # type: ignore[arg-type]

    put(life.store, "." * 3_000)
    grouped = put(life.store, "a." * 2)[::2]
    life.store.close()
    monkeypatch.setattr(recovery, "numbered_rows", numbered_rows)
    life.open()
    assert looked_up == grouped


def test_groups_stay_in_buckets_with_few_messages_left(life: Life) -> None:
    numbers = put(life.store, "." * 500 + "a" + "." * 700 + "b")
    life.store.queue().remove(*[str(each) for each in numbers if each not in (501, 1_202)])
    for _ in range(2):
        assert groups(life.store) == ["a", "b"]
        life.rows()
    *_, last = put(life.store, "ab.")
    life.rows()
    assert [int(message.id) for message in life.store.queue().claim(9)] == [501, 1_202, last]


def test_a_batch_has_its_groups_while_a_stream_holds_or_keeps_it(life: Life) -> None:
    put(life.store, "aab.")

    def batch(number: int) -> list[str | None]:
        return [each.group for each in life.streams.messages("default", "s", number, "", "", 9)]

    assert life.next(0, 4) == 1
    put(life.store, "ab")
    assert life.store.queue().claim(9) == []
    life.rows()
    assert batch(1) == ["a", "a", "b", None]
    assert life.store.queue().claim(9) == []
    assert life.next(1, 1) == 2
    life.rows()
    assert (batch(1), batch(2)) == (["a", "a", "b", None], ["a"])
    pages = life.streams.read("default", "s", 1, None).pages
    assert [page.group(at) for _, page in pages for at, state in enumerate(page.state) if state] == [
        "a",
        "a",
        "b",
        None,
    ]


def test_followers_see_groups_also_of_messages_that_have_left(life: Life) -> None:
    life.streams.start("default", "f", "earliest")
    put(life.store, "a.a")
    life.backend.run(
        Ack("default", [each.receipt or "" for each in life.backend.run(Claim("default", 9, 30, 0, "me"))])
    )
    for _ in range(2):
        entered = life.streams.entered("default", "f", 0, 1 << 40, 9)
        assert [message.group for message in entered] == ["a", None, "a"]
        life.rows()


def test_published_messages_have_no_group_and_hold_none_up(life: Life) -> None:
    life.backend.create("all", Settings(filter="1 = 1"))
    life.backend.run(Publish(Entry(b"published")))
    put(life.store, "aa", "all")
    life.backend.run(Publish(Entry(b"published")))
    life.rows()
    claimed = life.store.queue("all").claim(9)
    assert [(message.payload, message.group) for message in claimed] == [
        (b"published", None),
        (b"x", "a"),
        (b"published", None),
    ]


def test_a_load_brings_groups(life: Life) -> None:
    put(life.store, "a")
    name = new_name(os.getpid())
    frame = encode_entries([Entry(b"1", group="a"), Entry(b"2"), Entry(b"3", group="b")])
    life.backend.loads._place.stage(name, "frame", frame)
    assert life.backend.loads.commit(Load(name, [Frame("default", "frame", 3, 3)], {}, None))
    for _ in range(2):
        assert groups(life.store) == ["a", "a", None, "b"]
        assert [message.payload for message in life.store.queue().peek(9)] == [b"x", b"2", b"3"]
        life.rows()


def test_the_doctor_finds_nothing_wrong_with_groups(life: Life) -> None:
    put(life.store, "aab")
    life.store.queue().claim(9)
    life.store.close()
    assert examine(f"slate:{life.folder}").sound
    life.open()


def test_a_queue_with_groups_is_marked_for_versions_that_know_none_until_it_is_deleted(life: Life) -> None:
    def marked() -> list[str]:
        keys = map(records.parse_key, life.rows())
        return [key.queue for key in keys if key.kind == records.GROUPS]

    life.backend.create("jobs", Settings())
    put(life.store, "...", "jobs")
    assert marked() == []
    put(life.store, ".a", "jobs")
    assert marked() == ["jobs"]
    life.store.queue("jobs").purge()
    put(life.store, "a", "jobs")
    assert marked() == ["jobs"]
    life.store.delete("jobs")
    assert marked() == []
