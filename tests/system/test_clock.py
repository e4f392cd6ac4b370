"""The steady clock of a store, processes whose clocks disagree, and alarms."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import SimulatedClock
from penstock.system.clock import Alarm, SteadyClock, SystemClock

NONE = {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 0}


class MachineClock(SystemClock):
    """A machine's clock that is set, and whose time passes, as a test says."""

    def __init__(self) -> None:
        self.simulated = SimulatedClock()

    def now(self) -> int:
        return self.simulated.now()

    def monotonic(self) -> float:
        return self.simulated.monotonic()


@pytest.fixture
def machine() -> MachineClock:
    return MachineClock()


def test_the_machines_clock_is_not_believed_when_it_leaps_by_more_than_a_minute(machine: MachineClock) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    machine.simulated.jump(60)
    assert steady.now() == before + 60_000
    machine.simulated.jump(61)
    assert steady.now() == before + 60_000
    machine.simulated.advance(9.999)
    assert steady.now() == before + 69_999
    machine.simulated.advance(0.001)
    assert steady.now() == before + 131_000


def test_a_second_glitch_long_after_the_first_is_not_believed_either(machine: MachineClock) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    for _ in range(3):
        machine.simulated.jump(86_400)
        steady.now()
        machine.simulated.jump(-86_400)
        machine.simulated.advance(60)
        steady.now()
    assert steady.now() == before + 180_000


def test_a_second_glitch_is_not_believed_because_of_the_first(machine: MachineClock) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    machine.simulated.jump(86_400)
    assert steady.now() == before
    machine.simulated.jump(-86_400)
    assert steady.now() == before
    machine.simulated.advance(60)
    machine.simulated.jump(86_400)
    assert steady.now() == before + 60_000


@pytest.mark.parametrize("seconds", [0.4, 35])
def test_a_clock_that_was_set_back_by_what_has_passed_since_is_not_the_stores_time(
    machine: MachineClock, seconds: float
) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    for number in range(3):
        machine.simulated.jump(-seconds)
        if number == 1:
            assert steady.now() == before + 1_000 * seconds
        machine.simulated.advance(seconds)
        assert steady.now() == before + 1_000 * seconds * (number + 1)


def test_a_machine_that_slept_wakes_up_later(machine: MachineClock) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    machine.simulated.advance(86_400)
    assert steady.now() == before + 86_400_000


def test_time_goes_on_evenly_whatever_is_done_to_the_clock(machine: MachineClock) -> None:
    steady = SteadyClock(machine)
    before = steady.now()
    for number, jump in enumerate([-3600, 86_400, -86_400, -5, 3605, 7200, -7200]):
        machine.simulated.jump(jump)
        machine.simulated.advance(1)
        assert steady.now() == before + 1_000 * (number + 1)


def test_the_machines_own_clock_is_what_a_store_says() -> None:
    clock = SystemClock()
    steady = SteadyClock(clock)
    for _ in range(20_000):
        before = clock.now()
        assert before <= steady.now() <= clock.now()


def test_threads_that_interrupt_each_other_do_not_hurry_time() -> None:
    clock = SystemClock()
    steady, stopped = SteadyClock(clock), threading.Event()

    def look() -> None:
        while not stopped.is_set():
            steady.horizon()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        assert steady.now() <= clock.now()
    stopped.set()
    for thread in threads:
        thread.join()


# Times that others have written


Open = Callable[[SimulatedClock], penstock.Store]


@pytest.fixture(params=["text", "tq", "folder"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same store for another process, or what to the store is no different."""
    url = {"text": f"text:{tmp_path / 'data'}", "tq": str(tmp_path / "default.tq"), "folder": f"folder:{tmp_path}"}
    opened: list[penstock.Store] = []

    def another(clock: SimulatedClock) -> penstock.Store:
        opened.append(penstock.open(url[request.param], clock=clock))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


def test_a_process_whose_clock_is_a_day_ahead_does_not_move_the_time_of_others(
    shared: Open, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    queue = shared(clock).queue()
    queue.put_many([b"held", penstock.Draft(b"kept", retention=3600)])
    [held] = queue.claim(lease=60)
    ahead = shared(SimulatedClock(clock.now() + 86_400_000)).queue()
    ahead.put(b"from tomorrow")
    ahead.put_many([b"so is this", b"and this"])
    clock.advance(1)
    assert queue.counts()["delayed"] == 0
    assert held.lease_until is not None
    assert clock.now() < held.lease_until
    queue.put(b"mine")
    [mine] = [message for message in queue.messages() if message.payload == b"mine"]
    assert mine.received_at == clock.now()
    assert len([record for record in caplog.records if "ahead of the clock" in record.getMessage()]) == 1
    again = shared(clock).queue()
    again.put(b"mine, too")
    assert max(message.received_at for message in again.messages() if b"mine" in message.payload) == clock.now()
    clock.advance(1)  # after which a folder store has seen what others have put
    taken = [message.payload for message in queue.claim(10)]
    assert {b"from tomorrow", b"so is this", b"and this", b"mine", b"mine, too"} <= set(taken)


def test_processes_whose_clocks_disagree_by_minutes_agree_on_the_later_time(shared: Open) -> None:
    clock = SimulatedClock()
    queue = shared(clock).queue()
    ahead = shared(SimulatedClock(clock.now() + 600_000)).queue()
    ahead.put(b"a")
    assert [message.payload for message in ahead.claim(lease=60)] == [b"a"]
    assert queue.claim() == []
    queue.put(b"b")
    [later] = [message for message in queue.messages() if message.payload == b"b"]
    assert later.received_at == clock.now() + 600_000


def test_a_time_that_a_person_writes_into_a_text_file_moves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    with penstock.open(f"text:{tmp_path}", clock=clock) as store:
        queue = store.queue()
        queue.put(b"held")
        [held] = queue.claim(lease=60)
        queue.put(b"edited")
        [file] = tmp_path.glob("*.tq")
        file.write_bytes(file.read_bytes().replace(b"received=2023", b"received=2123"))
        assert queue.counts() == {**NONE, "available": 1, "in_flight": 1}
        assert queue.claim()[0].payload == b"edited"
        held.ack()
        [said] = {record.getMessage() for record in caplog.records}
        assert said.startswith(str(file))


@pytest.mark.parametrize("last", ["put", "claim", "release"])
def test_a_file_dropped_by_hand_comes_at_the_time_that_a_folder_store_has_recorded(
    tmp_path: Path, last: str
) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{tmp_path}", clock=clock) as store:
        store.queue().put(b"a")
        clock.advance(600)
        if last == "put":
            store.queue().put(b"b")
        else:
            [held] = store.queue().claim(lease=3_600)
            if last == "release":
                held.release()
    (tmp_path / "queues/default/by hand").write_bytes(b"dropped")
    clock.jump(-600)
    with penstock.open(f"folder:{tmp_path}", clock=clock) as store:
        [dropped] = [message for message in store.queue().messages() if message.payload == b"dropped"]
        assert dropped.received_at == clock.now() + 600_000
        assert {each.claimed_at for each in store.queue().claim(3)} == {clock.now() + 600_000}


def test_a_file_dropped_by_hand_keeps_its_id_when_the_clock_is_set_back(tmp_path: Path) -> None:
    for number in range(20):  # the files are met in any order
        clock, folder = SimulatedClock(), tmp_path / str(number)
        clock.advance(600)
        with penstock.open(f"folder:{folder}", clock=clock) as store:
            (folder / "queues/default/by hand").write_bytes(b"dropped")
            [dropped] = store.queue().messages()
            store.queue().put(b"put")
        clock.jump(-600)
        with penstock.open(f"folder:{folder}", clock=clock) as store:
            assert dropped.id in [message.id for message in store.queue().messages()]


@pytest.mark.parametrize("later", ["claim", "put"])
def test_a_process_that_only_settles_does_so_at_the_time_that_is_recorded(shared: Open, later: str) -> None:
    clock = SimulatedClock()
    queue = shared(clock).queue()
    queue.put_many([b"a", b"b"])
    if later == "claim":
        clock.advance(600)
    held = queue.claim(2, lease=3_600)
    if later == "put":
        clock.advance(600)
        queue.put(b"c")
    clock.jump(-600)
    fresh = shared(clock).queue()
    fresh.release(held[0].receipt or "")
    fresh.extend(held[1].receipt or "", lease=60)
    times = {message.payload: message for message in fresh.messages()}
    assert times[b"a"].visible_at == clock.now() + 600_000
    assert times[b"b"].lease_until == clock.now() + 660_000


def test_a_line_of_a_person_comes_at_the_time_that_a_text_store_has_recorded(tmp_path: Path) -> None:
    clock = SimulatedClock()
    url, file = f"text:{tmp_path}", tmp_path / "default.tq"
    with penstock.open(url, clock=clock) as store:
        clock.advance(600)
        store.queue().put(b"a")
        with file.open("ab") as appended:
            appended.write(b"-b\n")
        clock.jump(-600)
    with penstock.open(url, clock=clock) as store:
        assert {message.received_at for message in store.queue().messages()} == {clock.now() + 600_000}


def test_a_line_of_a_person_in_the_place_of_others_comes_when_it_is_met(tmp_path: Path) -> None:
    clock = SimulatedClock()
    url, file = f"text:{tmp_path}", tmp_path / "default.tq"
    with penstock.open(url, clock=clock) as store:
        file.write_bytes(b"-a\n-b\n-c\n")
        store.queue().claim()
        file.write_bytes(b"")
        assert len(store.queue()) == 0
        clock.advance(60)
        file.write_bytes(b"-d\n")
        assert [message.received_at for message in store.queue().messages()] == [clock.now()]


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_a_store_that_goes_on_ahead_of_the_clock_says_so_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    clock.advance(86_400)
    with penstock.open(f"{kind}:{tmp_path}", clock=clock) as store:
        store.queue().put(b"a", delay=60)
    clock.jump(-86_400)
    with penstock.open(f"{kind}:{tmp_path}", clock=clock) as store:
        clock.advance(60)
        assert store.queue().counts() == {**NONE, "available": 1}
    [said] = [record.getMessage() for record in caplog.records]
    assert "86,400 s ahead of the clock" in said


def test_simulated_time_does_not_drift() -> None:
    clock = SimulatedClock(now=0)
    for _ in range(10):
        clock.advance(0.1)
    assert (clock.now(), clock.monotonic()) == (1_000, 1.0)


def test_time_that_passes_between_a_look_at_simulated_time_and_a_wait_is_not_missed() -> None:
    clock = SimulatedClock()
    end = clock.now() + 10_000
    clock.advance(10)
    assert not clock.wait(threading.Event(), 10)
    assert clock.now() == end


def test_a_wait_that_is_longer_than_the_system_can_count_is_no_error() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    assert SystemClock().wait(event, 1e12)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def test_an_alarm_calls_in_the_order_of_time_and_rests_when_done() -> None:
    clock = SimulatedClock()
    alarm = Alarm(clock)
    called: list[str] = []
    alarm.set(lambda: called.append("later"), clock.now() + 2_000)
    alarm.set(lambda: called.append("sooner"), clock.now() + 1_000)
    clock.advance(1)
    until(lambda: called == ["sooner"])
    clock.advance(1)
    until(lambda: called == ["sooner", "later"])
    until(lambda: not alarm._running)
    alarm.set(lambda: called.append("again"), clock.now())
    until(lambda: len(called) == 3)


def test_an_alarm_that_is_set_again_replaces_itself_and_one_that_is_cancelled_is_forgotten() -> None:
    clock = SimulatedClock()
    alarm = Alarm(clock)
    called: list[str] = []

    def ring() -> None:
        called.append("rung")

    def never() -> None:
        called.append("never")

    for hour in range(5_000):
        alarm.set(ring, clock.now() + 3_600_000 * (5_001 - hour))
    alarm.set(never, clock.now() + 1_000)
    alarm.cancel(never)
    assert len(alarm._heap) < 100
    clock.advance(2 * 3_600)
    until(lambda: called == ["rung"])
    until(lambda: not alarm._running)


class StandingClock(SimulatedClock):
    """Stands still, and remembers how long it was asked to wait."""

    def __init__(self, wakes: bool) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.wakes = wakes

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        return event.wait() if self.wakes else False


def do_nothing() -> None:
    pass


def test_an_alarm_that_is_set_nearer_within_a_millisecond_is_not_late() -> None:
    clock = StandingClock(wakes=True)
    alarm = Alarm(clock)
    alarm.set(do_nothing, clock.now() + 3_600_000)
    until(lambda: len(clock.waits) == 1)
    alarm.set(do_nothing, clock.now() + 10)
    until(lambda: len(clock.waits) == 2)
    alarm.cancel(do_nothing)
    assert clock.waits == [1.0, 0.01]


def test_an_alarm_looks_ever_less_often_at_a_clock_that_stands_still() -> None:
    clock = StandingClock(wakes=False)
    alarm = Alarm(clock)

    alarm.set(do_nothing, clock.now() + 3)
    until(lambda: len(clock.waits) > 12)
    alarm.cancel(do_nothing)
    assert clock.waits[:5] == [0.003, 0.006, 0.012, 0.024, 0.048]
    assert clock.waits[12] == 1.0


def test_an_alarm_outlives_a_call_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock()
    alarm = Alarm(clock)
    called: list[str] = []

    def fail() -> None:
        raise OSError("disk on fire")

    alarm.set(fail, clock.now())
    alarm.set(lambda: called.append("rung"), clock.now() + 1)
    clock.advance(1)
    until(lambda: called == ["rung"])
    assert "disk on fire" in caplog.text
