"""A message as a Python object: its repr, its pickle, its payload as JSON, and its table."""

import asyncio
import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock import InvalidArgument, Message, Queue, State, Store, Sync, aio
from penstock.contract.message import STATES
from penstock.spark.tables import schema_of


@pytest.fixture
def jobs() -> Queue:
    return penstock.open("memory:").create("jobs", max_attempts=1)


def claimed(jobs: Queue, payload: bytes | str = b"a") -> Message:
    jobs.put(payload, headers={"type": "order"})
    [message] = jobs.claim()
    return message


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_unpickled_message_is_equal_and_is_settled_by_its_receipt(jobs: Queue, protocol: int) -> None:
    message = claimed(jobs)
    unpickled = pickle.loads(pickle.dumps(message, protocol))
    assert unpickled == message
    assert type(unpickled) is Message
    for settle in (unpickled.ack, unpickled.fail, unpickled.release, unpickled.extend):
        with pytest.raises(InvalidArgument, match=r"unpickled.*store\.queue\('jobs'\)\.ack\(message\.receipt\)"):
            settle()
    assert jobs.counts()["in_flight"] == 1
    assert unpickled.receipt is not None
    jobs.ack(unpickled.receipt)
    assert jobs.counts()["in_flight"] == 0


def test_another_process_gets_the_message_from_its_pickle(jobs: Queue, tmp_path: Path) -> None:
    message = claimed(jobs, '{"cat": 1}')
    (tmp_path / "message").write_bytes(pickle.dumps(message))
    code = "import pickle, sys; m = pickle.load(sys.stdin.buffer); print(m.receipt, m.json()['cat'])"
    with (tmp_path / "message").open("rb") as file:
        child = subprocess.run(
            [sys.executable, "-c", code], stdin=file, capture_output=True, text=True, check=True
        )
    assert child.stdout == f"{message.receipt} 1\n"


async def _claimed_by_a_coroutine() -> aio.Message:
    async with aio.open("memory:") as store:
        queue = await store.create("jobs")
        await queue.put(b"a")
        [message] = await queue.claim()
        return message


def test_a_message_of_a_coroutine_stays_one_of_a_coroutine() -> None:
    message = asyncio.run(_claimed_by_a_coroutine())
    unpickled = pickle.loads(pickle.dumps(message))
    assert unpickled == message
    assert type(unpickled) is aio.Message
    with pytest.raises(InvalidArgument, match="was unpickled"):
        asyncio.run(unpickled.ack())


def test_a_copy_of_a_message_settles_it_as_the_message_does(jobs: Queue) -> None:
    copy.copy(claimed(jobs)).ack()
    assert jobs.counts()["in_flight"] == 0


def test_a_repr_is_short_and_leaves_out_what_does_not_apply(jobs: Queue) -> None:
    jobs.put(b"x" * 16_000_000, headers={f"name-{number}": "y" * 1000 for number in range(60)}, priority=7)
    [waiting] = jobs.peek()
    shown = repr(waiting)
    assert len(shown) < 1_000
    assert f"payload={b'x' * 60!r}... (16,000,000 bytes)" in shown
    assert ", ...} (60)" in shown
    assert shown.startswith(f"Message(id={waiting.id!r}, queue='jobs'")
    assert "priority=7" in shown
    assert "None" not in shown
    assert "receipt" not in shown
    [message] = jobs.claim(consumer="w")
    assert f"receipt={message.receipt!r}" in repr(message)
    assert "consumer='w'" in repr(message)


def test_a_short_payload_is_shown_whole(jobs: Queue) -> None:
    jobs.put(b"x" * 60)
    [message] = jobs.peek()
    assert f"payload={b'x' * 60!r}, headers={{}}" in repr(message)


def test_json_is_the_payload_parsed(jobs: Queue) -> None:
    assert claimed(jobs, '{"to": ["ä", 1.5, null]}').json() == {"to": ["ä", 1.5, None]}


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000])
def test_json_of_another_payload_names_the_message(jobs: Queue, payload: bytes) -> None:
    message = claimed(jobs, payload)
    with pytest.raises(ValueError, match=rf"the payload of message {message.id} of queue 'jobs' is not JSON"):
        message.json()


def test_the_types_of_arguments_list_their_values() -> None:
    assert get_args(State) == STATES
    for sync in get_args(Sync):
        penstock.open("memory:", sync=sync).close()


# Tables


def all_states(store: Store) -> Queue:
    jobs = store.create("jobs", max_attempts=1, keep_done=None)
    jobs.put_many([b"done", b"failed", b"\xff\x00"])
    done, failed, _held = jobs.claim(3, consumer="w")
    done.ack()
    failed.fail(reason="broken")
    jobs.put(b"delayed", delay=60, headers={"type": "order"}, retention=3600)
    jobs.put(b"", priority=-(2**63))
    return jobs


def row_of(message: Message) -> dict[str, object]:
    row = {name: getattr(message, name) for name in schema_of("messages").fieldNames()}
    return {**row, "headers": list(message.headers.items())}


def test_an_arrow_table_has_the_columns_and_types_of_sparks_table() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    with penstock.open("memory:") as store:
        assert from_arrow_schema(all_states(store).to_arrow().schema) == schema_of("messages")


def test_an_arrow_table_has_a_row_for_each_message() -> None:
    with penstock.open("memory:") as store:
        jobs = all_states(store)
        table = jobs.to_arrow()
        for number, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                milliseconds = pc.divide(table[field.name].cast(pa.int64()), 1000)
                table = table.set_column(number, field.name, milliseconds)
        assert table.to_pylist() == [row_of(message) for message in jobs.messages()]
        for state in STATES:
            assert jobs.to_arrow(state)["state"].to_pylist() == [state]


def test_an_arrow_table_of_an_empty_queue_has_its_columns(jobs: Queue) -> None:
    assert jobs.to_arrow().num_rows == 0
    assert jobs.to_arrow().column_names == schema_of("messages").fieldNames()


def test_an_arrow_table_holds_more_than_a_batch_in_the_order_of_puts(jobs: Queue) -> None:
    payloads = [str(number).encode() for number in range(25_000)] + [b"x" * 8_000_000] * 3
    jobs.put_many(payloads)
    table = jobs.to_arrow()
    assert table["payload"].num_chunks > 1
    assert table["payload"].to_pylist() == payloads


def test_coroutines_get_the_same_arrow_table(tmp_path: Path) -> None:
    async def read() -> pa.Table:
        async with aio.open(tmp_path) as store:
            return await (await store.queue("jobs")).to_arrow("failed")

    with penstock.open(tmp_path) as store:
        expected = all_states(store).to_arrow("failed")
    assert asyncio.run(read()) == expected
    assert expected["reason"].to_pylist() == ["broken"]


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import penstock\n"
        "try: penstock.open('memory:').queue().to_arrow()\n"
        "except penstock.NotSupported as error: print(error)\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.startswith("to_arrow() needs pyarrow (")
    assert child.stdout.endswith("): `pip install pyarrow`\n")
