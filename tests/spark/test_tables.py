"""The tables of every kind of store, as processes of Spark read them but without Spark."""

import pytest

from penstock.errors import QueueNotFound
from tests.spark.reads import by_id, expired, listed, rows, varied
from tests.spark.stores import KINDS, Place, place
from tests.stores.journal.test_tables import ODD_NAMES

__all__ = ["place"]
MANY_QUEUES = [kind for kind in KINDS if kind != "bucket"]  # where making one takes no time


def test_every_field_of_every_state_is_as_the_store_shows_it(place: Place) -> None:
    expired(varied(place.store, few_priorities=place.is_slate))
    place.store.queue().put(b"of another queue")
    expected = by_id(listed(place.store))
    assert {row["state"] for row in expected} == {"delayed", "available", "in_flight", "done", "failed"}
    assert by_id(rows(place.url)) == expected
    for name in expected[0]:  # each column alone
        alone = [str(row[name]) for row in rows(place.url, [name])]
        assert sorted(alone) == sorted(str(row[name]) for row in expected)
    for states in ("failed", "done,delayed", "in_flight,failed,available"):
        found = by_id(rows(place.url, ["queue", "id"], state=states, queue="varied"))
        wanted = [row for row in expected if row["state"] in states.split(",") and row["queue"] == "varied"]
        assert [row["id"] for row in found] == [row["id"] for row in wanted]


def test_queues_and_attempts_are_tables_too(place: Place) -> None:
    queue = varied(place.store, few_priorities=place.is_slate)
    place.store.create("limits", max_size=5, priorities=(1, 7), retention=1.5, filter="a = 'b'", description="d")
    infos = place.store.queues()
    assert rows(place.url, table="queues") == [
        {"name": each.name, **each.settings, "priorities": each.settings.priorities and [1, 7]} | each.counts
        for each in infos
    ]
    assert rows(place.url, ["done", "name"], table="queues", queue="varied") == [{"done": 3, "name": "varied"}]
    attempts = [
        {"queue": "varied", "id": each.id, **attempt._asdict()}
        for each in queue.messages()
        for attempt in queue.attempts(each.id)
    ]
    assert rows(place.url, table="attempts") == rows(place.url, table="attempts", queue="varied") == attempts
    assert len(attempts) >= 9
    assert rows(place.url, ["outcome"], table="attempts", queue="limits") == []


@pytest.mark.parametrize("place", MANY_QUEUES, indirect=True)
def test_queues_of_any_name_are_read_together_and_alone(place: Place) -> None:
    for name in ODD_NAMES:
        place.store.create(name).put_many([name, b"again"])
    place.store.create("empty")
    place.store.queue().put(b"default")
    found = rows(place.url, ["queue", "payload"])
    assert sorted((row["queue"], row["payload"]) for row in found) == sorted(
        [("default", b"default"), *[(name, text) for name in ODD_NAMES for text in (name.encode(), b"again")]]
    )
    for name in ODD_NAMES:
        assert [row["payload"] for row in rows(place.url, queue=name)] == [name.encode(), b"again"]
    assert [row["payload"] for row in rows(place.url, queue="")] == [b"default"]
    assert rows(place.url, queue="empty") == []
    place.store.delete("a")
    with pytest.raises(QueueNotFound, match="there is no queue 'a'"):
        rows(place.url, queue="a")
    assert "a" not in {row["queue"] for row in rows(place.url, ["queue"])}
