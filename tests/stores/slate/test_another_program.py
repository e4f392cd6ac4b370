"""Databases that another program wrote by OpenData-Queue's document alone, opened by Penstock."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock import InvalidArgument, NotSupported, SimulatedClock, Store, StoreCorrupt
from penstock.cli.app import cli
from penstock.stores.slate import doctor
from penstock.stores.slate.objects import Bucket
from tests.stores.slate import opendata
from tests.stores.slate.opendata import START, Available, InFlight, Settled, Writer

HIGHEST = 2**62 - 1
SPARSE = [1, 1_023, 1_024, 2_047, 2_048, 70_000, 2**40 + 5, 2**40 + 1_029, HIGHEST - 1_024, HIGHEST]
Reopen = Callable[[], Store]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START + 1_000)


def opened(folder: Path, clock: SimulatedClock) -> Store:
    return penstock.open(f"slate:{folder}", share=False, clock=clock)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many messages as the document's record holds, every seventh number, one in ten of them urgent."""
    folder, writer = tmp_path_factory.mktemp("full"), Writer()
    ids = [7 * number + 3 for number in range(65_535)]
    for each in ids:
        writer.message(each, str(each).encode())
    writer.queue(b"jobs", available=[Available(each, 1 if each % 10 else 0) for each in ids])
    writer.queue(b"empty")
    writer.seq_block(1, 500_000)
    writer.write(folder)
    return folder


@pytest.fixture
def copy(full: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full, tmp_path / "copy"))


@pytest.mark.long
def test_65_535_messages_in_one_record_are_claimed_and_settled_one_for_one(
    copy: Path, clock: SimulatedClock
) -> None:
    ids = [7 * number + 3 for number in range(65_535)]
    order = sorted(ids, key=lambda each: (bool(each % 10), each))
    with opened(copy, clock) as store:
        queue = store.queue("jobs")
        first = queue.claim(3_000, lease=60)
        assert [int(each.id) for each in first] == order[:3_000]
        assert all(each.payload == each.id.encode() for each in first)
        queue.ack(*first[:1_000])
        queue.fail(*first[1_000:1_500], reason="no")
        queue.remove(*[each.id for each in first[2_900:]])
    with opened(copy, clock) as store:
        queue = store.queue("jobs")
        rest = queue.claim(100_000, lease=60)
        assert [int(each.id) for each in rest] == order[1_000:1_500] + order[3_000:]
        assert all(each.payload == each.id.encode() for each in rest)
        new = queue.put(b"new")
    found = opendata.read(copy).queues[b"jobs"].ids()
    assert found == {
        "available": [int(new)],
        "in_flight": sorted(order[1_000:2_900] + order[3_000:]),
        "done": sorted(order[:1_000]),
    }
    assert int(new) > 500_000


def test_a_full_record_is_examined_exactly_before_it_was_ever_opened(full: Path) -> None:
    found = doctor.examine(f"slate:{full}", START + 1_000)
    assert found.sound
    jobs = next(queue for queue in found.queues if queue.name == "jobs")
    assert jobs.counts["available"] == 65_535
    assert jobs.bytes == sum(len(str(7 * number + 3)) for number in range(65_535))


def sparse(folder: Path, numbers: list[int] | None = None) -> None:
    """Messages in every state, whose IDs lie far apart; `numbers` are those of the log, if they are others."""
    writer = Writer()
    for at, each in enumerate(SPARSE):
        number = each if numbers is None else numbers[at]
        writer.message(each, b"payload %d" % each, number, visible_at=START, kind="a" if at % 2 else "b")
    one, two, three, four, five, six, seven, eight, nine, ten = SPARSE
    writer.queue(
        b"jobs",
        max_attempts=2,
        keep_done=3_600,
        available=[Available(ten, 9), Available(six, 7), Available(one, 7, START, 0, 1)],
        in_flight=[InFlight(two), InFlight(seven, 3, START, START + 500, 2)],
        done=[Settled(nine, START - 3_600_000 + 5_000), Settled(three, START, 2)],
        failed=[Settled(four, START, 2), Settled(eight, START, 2)],
    )
    writer.queue(b"other", available=[Available(five, 255), Available(ten, 0)])
    writer.attempts(two, "host:1")
    writer.attempts(seven, "host:1", "host:2")
    writer.seq_block(1, 10)
    writer.write(folder)


def payload(message: int) -> bytes:
    return b"payload %d" % message


@pytest.mark.parametrize("numbers", [None, list(range(1, 11)), [*SPARSE[1:], SPARSE[0]]])
def test_messages_in_every_state_are_what_the_records_say(
    tmp_path: Path, clock: SimulatedClock, numbers: list[int] | None
) -> None:
    sparse(tmp_path, numbers)
    one, two, three, four, five, six, seven, eight, nine, ten = SPARSE
    with opened(tmp_path, clock) as store:
        jobs = store.queue("jobs")
        found = {
            int(each.id): (each.state, each.priority, each.attempts, each.payload) for each in jobs.messages()
        }
        assert found == {
            one: ("available", 7, 1, payload(one)),
            two: ("in_flight", 0, 1, payload(two)),
            three: ("done", 0, 2, payload(three)),
            four: ("failed", 0, 2, payload(four)),
            six: ("available", 7, 0, payload(six)),
            seven: ("failed", 3, 2, payload(seven)),  # its lease has ended, and it has no more attempts
            eight: ("failed", 0, 2, payload(eight)),
            nine: ("done", 0, 1, payload(nine)),
            ten: ("available", 9, 0, payload(ten)),
        }
        assert [(int(each.id), each.priority) for each in store.queue("other").claim(9)] == [(ten, 0), (five, 255)]
        assert {int(each.id): each.headers["kind"] for each in jobs.messages()}[six] == "a"


def test_what_is_done_with_such_messages_is_done_to_these_and_no_others(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    sparse(tmp_path)
    one, two, three, four, five, six, seven, eight, _, ten = SPARSE
    with opened(tmp_path, clock) as store:
        jobs = store.queue("jobs")
        claimed = jobs.claim(2, lease=60, consumer="me")
        assert [int(each.id) for each in claimed] == [one, six]
        claimed[0].fail(reason="no")
        claimed[1].ack()
        popped = jobs.pop()
        assert popped is not None
        assert (int(popped.id), popped.payload) == (ten, payload(ten))
        assert jobs.redrive(str(four), str(seven)) == 2
        assert jobs.remove(str(eight)) == 1
        clock.advance(5)
    with opened(tmp_path, clock) as store:
        jobs = store.queue("jobs")
        states = {int(each.id): each.state for each in jobs.messages()}
        # Message nine was done an hour ago, for as long as this queue keeps such.
        assert states == {
            one: "failed",
            two: "in_flight",
            three: "done",
            four: "available",
            six: "done",
            seven: "available",
            ten: "done",
        }
        assert [int(each.id) for each in jobs.claim(9)] == [four, seven]
        assert [int(each.id) for each in store.queue("other").claim(9)] == [ten, five]
    found = opendata.read(tmp_path)
    assert found.queues[b"jobs"].ids() == {
        "in_flight": [two, four, seven],
        "done": [three, six, ten],
        "failed": [one],
    }
    assert found.queues[b"other"].ids() == {"in_flight": [five, ten]}
    assert found.queues[b"jobs"].config == (b"\x00\x00", 2, 3_600)
    assert set(found.payloads) == set(found.log) == set(SPARSE)
    assert found.attempts[six] == ["me"]
    assert found.attempts[seven][:2] == ["host:1", "host:2"]
    assert len(found.attempts[seven]) == 3


def test_the_examination_of_sparse_messages_is_that_of_the_opened_store(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    sparse(tmp_path, list(range(1, 11)))
    before = doctor.examine(f"slate:{tmp_path}", clock.now())
    with opened(tmp_path, clock) as store:
        counts = {info.name: info.counts for info in store.queues()}
    after = doctor.examine(f"slate:{tmp_path}", clock.now())
    for found in (before, after):
        assert found.sound
        examined = {queue.name: queue.counts for queue in found.queues}
        assert examined == {name: counts[name] for name in examined}
        assert {queue.name: queue.bytes for queue in found.queues if queue.bytes} == {
            "jobs": sum(len(payload(each)) for each in SPARSE if each != SPARSE[4]),
            "other": len(payload(SPARSE[4])) + len(payload(SPARSE[9])),
        }


def test_an_entry_of_the_log_without_a_payload_is_named_before_it_is_routed(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    writer = Writer()
    for number, each in enumerate((2_000, 2_001), 1):
        writer.message(each, b"x", number, kind="a")
    del writer.rows[b"\x01\x01" + (2_001).to_bytes(8)]
    writer.queue(b"jobs", "kind = 'a'")
    writer.write(tmp_path)
    for _ in range(2):
        [problem] = [each for _, each in doctor.examine(f"slate:{tmp_path}", clock.now()).all_findings()
                     if each.severity == "problem"]  # fmt: skip
        assert "message 2001 for example" in problem.text
        with opened(tmp_path, clock) as store:
            [message] = store.queue("jobs").claim()
            assert (message.id, message.payload) == ("2000", b"x")
            message.release()
            with pytest.raises(StoreCorrupt, match="message 2001 "):
                store.queue("jobs").claim(2)


def test_where_the_highest_number_was_given_new_messages_are_refused(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    sparse(tmp_path)
    with opened(tmp_path, clock) as store:
        with pytest.raises(NotSupported, match="no number left"):
            store.queue("jobs").put(b"x")
        with pytest.raises(NotSupported, match="no number left"):
            store.publish(b"x")
        assert len(store.queue("jobs").claim(9)) == 3


@pytest.mark.parametrize("block", [None, (1, 100), (90, 7)])
def test_new_messages_get_numbers_that_nobody_has(
    tmp_path: Path, clock: SimulatedClock, block: tuple[int, int] | None
) -> None:
    writer = Writer()
    for each in (5, 5_000, 70_000):
        writer.message(each, b"x")
    writer.queue(b"jobs", available=[Available(5_000)])
    if block is not None:
        writer.seq_block(*block)
    writer.write(tmp_path)
    with opened(tmp_path, clock) as store:
        ids = [int(store.queue("jobs").put(b"a")), int(store.publish(b"b"))]
        assert min(ids) > 70_000
        assert [int(each.id) for each in store.queue("jobs").claim(9)] == [5_000, ids[0]]
    assert opendata.read(tmp_path).payloads[70_000] == b"x"


# Routing


def test_entries_that_were_logged_and_not_routed_are_routed_from_the_highest_id_on(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    writer = Writer()
    for each in range(2_000, 2_100):
        writer.message(each, b"%d" % each, kind="even" if each % 2 == 0 else "odd")
    writer.queue(b"even", "kind = 'even'", available=[Available(2_020)], done=[Settled(2_050)])
    writer.queue(b"odd", "kind = 'odd'", failed=[Settled(2_047)])
    writer.queue(b"none", "kind = 'neither'")
    writer.write(tmp_path)
    for _ in range(2):  # once
        with opened(tmp_path, clock) as store:
            even = [int(each.id) for each in store.queue("even").messages("available")]
            assert even == [2_020, *range(2_052, 2_100, 2)]
            assert [int(each.id) for each in store.queue("odd").messages("available")] == [*range(2_051, 2_100, 2)]
            assert store.queue("none").count() == 0
    with opened(tmp_path, clock) as store:
        last = store.publish(b"new", headers={"kind": "odd"})
        *_, message = store.queue("odd").messages("available")
        assert (message.id, message.payload) == (last, b"new")


def test_a_log_of_which_nothing_was_routed_is_routed_from_its_beginning(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    writer = Writer()
    for number, each in enumerate((9, 70_000, 2**50), 1):
        writer.message(each, b"%d" % each, number, kind="a")
    writer.queue(b"all", "kind = 'a'")
    writer.write(tmp_path)
    with opened(tmp_path, clock) as store:
        found = store.queue("all").claim(9)
        assert [(int(each.id), each.payload) for each in found] == [
            (9, b"9"),
            (70_000, b"70000"),
            (2**50, b"%d" % 2**50),
        ]


def test_messages_of_others_expire_as_the_log_says(tmp_path: Path, clock: SimulatedClock) -> None:
    writer = Writer()
    for number, each in enumerate((10, 2_000, 2_001, 2_002, 2_003, 2_004)):
        writer.message(each, b"x", retention=0 if number == 5 else 10 + number)
    writer.queue(
        b"jobs",
        available=[Available(10, 0, START, START + 10_000), Available(2_004, 0, START, START)],
        in_flight=[InFlight(2_000, 0, START, START + 900_000)],
        done=[Settled(2_001)],
        failed=[Settled(2_002)],
    )
    writer.attempts(2_003, "host:1")  # it is in no queue any more
    writer.write(tmp_path)
    with opened(tmp_path, clock) as store:
        assert [each.expires_at for each in store.queue("jobs").messages()] == [
            START + 10_000,
            START + 11_000,
            START + 12_000,
            START + 13_000,
            None,
        ]
        clock.advance(11)
        assert sorted(int(each.id) for each in store.queue("jobs").messages()) == [2_002, 2_004]
    with opened(tmp_path, clock) as store:
        assert sorted(int(each.id) for each in store.queue("jobs").messages()) == [2_002, 2_004]
        clock.advance(60)
        assert [int(each.id) for each in store.queue("jobs").claim(9)] == [2_004]
        store.queue("jobs").put(b"y")
    found = opendata.read(tmp_path)
    assert [each for each in found.payloads if each < 2_005] == [2_004]
    assert [each for each in found.log if each < 2_005] == [2_004]
    assert 2_003 not in found.attempts


# What is not ours


@pytest.mark.parametrize("wanted", ["kind ~ '^a'", b"\x03\x00\x01\x02\x03\x04"])
def test_a_filter_of_another_grammar_holds_its_own_queue_only_and_is_named(
    tmp_path: Path, clock: SimulatedClock, wanted: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    for each in (2_000, 2_001, 2_002):
        writer.message(each, b"%d" % each, kind="a")
    writer.queue(b"odd", wanted, max_attempts=7, available=[Available(2_000)])
    writer.queue(b"ours", "kind = 'a'", available=[Available(2_000)])
    writer.write(tmp_path)
    examined = doctor.examine(f"slate:{tmp_path}", clock.now())
    assert examined.sound
    [finding] = next(queue for queue in examined.queues if queue.name == "odd").findings
    assert "filter" in finding.text
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "penstock"), opened(tmp_path, clock) as store:
            assert [record.getMessage() for record in caplog.records if "'odd'" in record.getMessage()] != []
            assert not [record for record in caplog.records if "'ours'" in record.getMessage()]
            assert [int(each.id) for each in store.queue("ours").messages()] == [2_000, 2_001, 2_002]
            odd = store.queue("odd")
            assert odd.settings.max_attempts == 7
            assert [int(each.id) for each in odd.messages()] == [2_000]
            with pytest.raises(NotSupported, match="filter"):
                odd.put(b"x")
            info = next(info for info in store.queues() if info.name == "odd")
            assert info.lag == 2
            [message] = odd.claim()
            assert message.payload == b"2000"
            message.release()
    result = CliRunner().invoke(cli, ["--store", f"slate:{tmp_path}", "show", "odd", "--json"])
    assert "filter_problem" in json.loads(result.stdout)
    result = CliRunner().invoke(cli, ["--store", f"slate:{tmp_path}", "show", "odd"])
    assert "filter problem" in result.stdout
    found = opendata.read(tmp_path).queues[b"odd"]
    stored = wanted if isinstance(wanted, bytes) else len(wanted).to_bytes(2, "little") + wanted.encode()
    assert found.config == (stored, 7, 0)


@pytest.mark.parametrize("name", [b"two words", b"caf\xc3\xa9", b"caf\xe9", b"\x00\x01\xff"])
def test_a_queue_whose_name_none_of_ours_can_have_is_named_and_left_as_it_is(
    tmp_path: Path, clock: SimulatedClock, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    writer.message(2_000, b"x")
    writer.queue(name, "kind = 'a'", available=[Available(2_000)], done=[Settled(7)])
    writer.queue(b"ours", available=[Available(2_000)])
    writer.write(tmp_path)
    before = opendata.rows_of(tmp_path, name)
    assert len(before) == 4
    with caplog.at_level(logging.WARNING, "penstock"), opened(tmp_path, clock) as store:
        assert [info.name for info in store.queues()] == ["default", "ours"]
        store.queue("ours").claim()[0].ack()
    assert "a name that Penstock does not allow" in caplog.text
    assert opendata.rows_of(tmp_path, name) == before
    examined = doctor.examine(f"slate:{tmp_path}", clock.now())
    assert examined.sound
    assert any("does not allow" in finding.text for finding in examined.findings)


def test_a_queue_without_a_config_is_not_removed(tmp_path: Path, clock: SimulatedClock) -> None:
    writer = Writer()
    writer.message(2_000, b"x")
    writer.queue(b"jobs", available=[Available(2_000)], config=False)
    writer.write(tmp_path)
    for _ in range(2):
        with opened(tmp_path, clock) as store:
            assert [each.payload for each in store.queue("jobs").messages()] == [b"x"]
    assert opendata.read(tmp_path).queues[b"jobs"].config == (b"\x00\x00", 0, 0)


def test_consumers_that_are_no_text_stay_as_they_are(tmp_path: Path, clock: SimulatedClock) -> None:
    writer = Writer()
    writer.message(2_000, b"x")
    writer.queue(b"jobs", available=[Available(2_000, attempts=1)])
    key, value = b"\x01\x05" + (2_000).to_bytes(8), b"\x01\x00" + (7).to_bytes(8, "little")
    writer.rows[key] = value
    writer.write(tmp_path)
    with opened(tmp_path, clock) as store:
        store.queue("jobs").claim(consumer="me")[0].ack()
    examined = doctor.examine(f"slate:{tmp_path}", clock.now())
    assert examined.sound
    assert any("consumers cannot be read" in finding.text for finding in examined.findings)


def test_a_payload_elsewhere_is_never_fetched(tmp_path: Path, clock: SimulatedClock) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    writer = Writer()
    writer.message(2_000, b"x")
    uri = b"objects/../../secret"
    writer.rows[b"\x01\x01" + (2_000).to_bytes(8)] = b"\x02" + len(uri).to_bytes(2, "little") + uri
    writer.queue(b"jobs", available=[Available(2_000)])
    writer.write(tmp_path / "store")
    with opened(tmp_path / "store", clock) as store, pytest.raises(StoreCorrupt, match="secret"):
        list(store.queue("jobs").messages())


# Instances


def test_a_second_instance_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}?instance=news", share=False) as store:
        store.create("jobs")
    for url in (f"slate:{tmp_path}", f"slate:{tmp_path}?instance=sports"):
        with pytest.raises(InvalidArgument, match=r"'news'.*\?instance=news"):
            penstock.open(url, share=False)
        [finding] = [each for each in doctor.examine(url).findings if each.severity == "problem"]
        assert "'news'" in finding.text
    with penstock.open(f"slate:{tmp_path}?instance=news", share=False) as store:
        assert [info.name for info in store.queues()] == ["default", "jobs"]


def test_a_store_without_an_instance_is_none_of_a_named_one(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}", share=False) as store:
        store.create("jobs")
    with pytest.raises(InvalidArgument, match="no named instance"):
        penstock.open(f"slate:{tmp_path}?instance=news", share=False)


def test_who_asks_the_owner_of_another_instance_is_refused(tmp_path: Path) -> None:
    url = f"slate:{tmp_path}?instance=news"
    with penstock.open(url) as store, penstock.open(url) as guest:
        with pytest.raises(InvalidArgument, match="'news'"):
            penstock.open(f"slate:{tmp_path}")
        with pytest.raises(InvalidArgument, match="'news'"):
            penstock.open(f"slate:{tmp_path}?instance=sports")
        store.queue().put(b"x")
        assert guest.queue().count() == 1


def test_a_second_instance_in_a_bucket_is_refused_and_takes_nothing_from_the_first(bucket: str) -> None:
    with penstock.open(f"{bucket}?instance=news", share=False) as store:
        store.queue().put(b"a")
        for url in (bucket, f"{bucket}?instance=sports"):
            with pytest.raises(InvalidArgument, match=r"'news'.*\?instance=news"):
                penstock.open(url, share=False)
            [finding] = [each for each in doctor.examine(url).findings if each.severity == "problem"]
            assert "'news'" in finding.text
        store.queue().put(b"b")
    with penstock.open(f"{bucket}?instance=news", share=False) as store:
        assert [each.payload for each in store.queue().messages()] == [b"a", b"b"]


@pytest.mark.parametrize("instance", ["", "news"])
def test_a_database_of_another_program_in_a_bucket_is_a_store(
    bucket: str, tmp_path: Path, clock: SimulatedClock, instance: str
) -> None:
    writer = Writer(instance)
    for each in SPARSE:
        writer.message(each, payload(each), kind="a")
    writer.queue(b"jobs", available=[Available(each) for each in SPARSE[:5]], in_flight=[InFlight(SPARSE[5])])
    writer.queue(b"all", "kind = 'a'", done=[Settled(SPARSE[7])])
    writer.queue(b"odd", "kind ~ 'a'", failed=[Settled(SPARSE[0])])
    writer.write(tmp_path)
    objects = Bucket(bucket.removeprefix("slate:"), 30)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            objects.put(str(path.relative_to(tmp_path)), path.read_bytes())
    url = f"{bucket}?instance={instance}" if instance else bucket
    examined = doctor.examine(url, clock.now())
    assert examined.sound
    assert {each.name: sum(each.counts.values()) for each in examined.queues} == {"jobs": 6, "all": 1, "odd": 1}
    with pytest.raises(InvalidArgument, match="instance"):
        penstock.open(f"{bucket}?instance=sports", share=False, clock=clock)
    for _ in range(2):
        with penstock.open(url, share=False, clock=clock) as store:
            found = {int(each.id): (each.state, each.payload) for each in store.queue("jobs").messages()}
            assert found == {
                each: ("in_flight" if each == SPARSE[5] else "available", payload(each)) for each in SPARSE[:6]
            }
            assert [int(each.id) for each in store.queue("all").messages("available")] == SPARSE[8:]
            assert [int(each.id) for each in store.queue("odd").messages()] == SPARSE[:1]
    with penstock.open(url, share=False, clock=clock) as store:
        claimed = store.queue("jobs").claim(9)
        assert [(int(each.id), each.payload) for each in claimed] == [(each, payload(each)) for each in SPARSE[:5]]
        store.queue("jobs").ack(*claimed)
        assert (store.queue("jobs").counts()["in_flight"], store.queue("jobs").counts()["done"]) == (1, 5)


def test_a_database_of_an_earlier_version_is_the_instance_of_its_log(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    writer = Writer("news")
    writer.message(2_000, b"x")
    writer.queue(b"jobs", available=[Available(2_000)])
    writer.write(tmp_path)
    with pytest.raises(InvalidArgument, match="'news'"):
        opened(tmp_path, clock)
    with penstock.open(f"slate:{tmp_path}?instance=news", share=False, clock=clock) as store:
        assert [each.payload for each in store.queue("jobs").claim()] == [b"x"]
    assert opendata.read(tmp_path, "news").queues[b"jobs"].ids() == {"in_flight": [2_000]}
