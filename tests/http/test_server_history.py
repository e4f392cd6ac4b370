"""The rings of the last hour and day: compared with a model that remembers everything."""

from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract.backend import FLOWS, Reading
from penstock.contract.message import STATES
from penstock.http.server.history import DAY, HOUR, SPANS, History, Span, Track, thinned

EMPTY = (0,) * len(STATES)
NOTHING = (0,) * len(FLOWS)
Rounds = list[tuple[float, dict[str, Reading]]]  # what each round has read, and when
Life = list[tuple[float, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]]  # counts, and what happens


def reading(queue: str, counts: tuple[int, ...] = EMPTY, flows: tuple[int, ...] | None = NOTHING) -> Reading:
    return Reading(queue, True, counts, flows, 0)


def available(queue: str, number: int) -> Reading:
    return reading(queue, (0, number, 0, 0, 0))


def watched(rounds: Rounds) -> History:
    """The history after these rounds."""
    history = History()
    for now, readings in rounds:
        history.begin(now)
        history.take(readings.values())
        history.finish()
    return history


sizes = st.sampled_from([0, 1, 2, 70_000])
lives = st.lists(
    st.tuples(
        # Seconds since the round before: usual, a step, hardly any, a machine that slept, longer than a day.
        st.sampled_from([10.0, 1.0, 30.0, 0.001, 600.0, 4_000.0, 100_000.0]),
        st.dictionaries(
            st.sampled_from("abc"),
            st.tuples(st.tuples(*[sizes] * len(STATES)), st.tuples(*[sizes] * len(FLOWS))),
        ),
    ),
    min_size=1,
    max_size=40,
)


def rounds_of(life: Life) -> Rounds:
    """Rounds with counters that grow while a queue is there, and start at 0 when it is made again."""
    rounds: Rounds = []
    now, counters = 1_000.0, dict[str, tuple[int, ...]]()
    for passed, queues in life:
        now += passed
        counters = {
            name: tuple(map(sum, zip(counters.get(name, NOTHING), flows, strict=True)))
            for name, (_, flows) in queues.items()
        }
        rounds.append((now, {name: reading(name, queues[name][0], counters[name]) for name in queues}))
    return rounds


def since(rounds: Rounds, queue: str) -> float:
    """From when on a queue has been there without a break."""
    seen = rounds[-1][0]
    for now, readings in reversed(rounds):
        if queue not in readings:
            break
        seen = now
    return seen


def expected(rounds: Rounds, names: set[str], seen: float, span: Span) -> list[tuple[float | None, ...]]:
    """The rows of a series: counts at the end of each step, and what happened in it by its seconds."""
    last = int(rounds[-1][0]) // span.seconds
    rows: list[tuple[float | None, ...]] = []
    for step in range(last - span.steps + 1, last + 1):
        seconds, happened = 0.0, NOTHING
        is_known = int(seen) // span.seconds == step
        for (before, read_before), (now, read) in pairwise(rounds):
            if int(now) // span.seconds != step:
                continue
            seconds += now - before
            for name in names & read.keys() if now >= seen else ():
                then = read_before[name].flows if name in read_before else NOTHING
                happened = plus(happened, plus(read[name].flows, then, -1))
            is_known |= now >= seen
        if is_known:
            read = [read for now, read in rounds if int(now) // span.seconds <= step][-1]
            counts = reduce(plus, (read[name].counts for name in names & read.keys()), EMPTY)
            rows.append((*counts, *(round(flow / seconds, 6) if seconds else 0.0 for flow in happened)))
        else:
            rows.append((None,) * (len(STATES) + len(FLOWS)))
    return rows


def plus(some: tuple[int, ...] | None, others: tuple[int, ...] | None, sign: int = 1) -> tuple[int, ...]:
    return tuple(a + sign * b for a, b in zip(some or (), others or (), strict=True))


@given(lives)
def test_series_are_those_of_a_model_that_remembers_everything(life: Life) -> None:
    rounds = rounds_of(life)
    history = watched(rounds)
    assert history.tracks.keys() == rounds[-1][1].keys()
    for name, track in history.tracks.items():
        check(history, track, rounds, {name}, since(rounds, name))
    check(history, history.total, rounds, set("abc"), rounds[0][0])


def check(history: History, track: Track, rounds: Rounds, names: set[str], seen: float) -> None:
    for span in SPANS.values():
        series = history.series(track, span)
        assert list(zip(*series.columns.values(), strict=True)) == expected(rounds, names, seen, span)
        assert 0 < series.end - rounds[-1][0] <= span.seconds
        assert rows(track, span) <= span.steps + 1


def rows(track: Track, span: Span) -> int:
    ring = track.ring(span)
    return 0 if ring is None else len(ring.steps)


def test_a_busy_queue_is_remembered_for_an_hour_and_a_day_and_no_longer() -> None:
    history = watched([(10.0 * number, {"a": available("a", number % 1_000)}) for number in range(20_000)])
    track = history.tracks["a"]
    assert rows(track, HOUR) == HOUR.steps + 1
    assert rows(track, DAY) == DAY.steps + 1


def test_an_idle_queue_has_no_rows_and_is_known_all_the_same() -> None:
    history = watched([(10.0 * number, {"a": available("a", 7)}) for number in range(1_000)])
    track = history.tracks["a"]
    assert (track.hour, track.day) == (None, None)
    assert history.series(track, HOUR).columns["available"] == [7] * HOUR.steps
    assert history.series(track, HOUR).columns["in"] == [0] * HOUR.steps


def test_ten_thousand_queues_take_little_memory() -> None:
    """Idle ones less than a kilobyte; a busy one at most what its two rings hold, in two bytes for each value."""
    names = [f"queue-{number}" for number in range(10_000)]
    history = watched([(10.0 * number, {name: available(name, 3) for name in names}) for number in range(3)])
    assert all(track.hour is None for track in history.tracks.values())
    ring = watched([(30.0 * number, {"a": available("a", number)}) for number in range(1_000)]).tracks["a"].hour
    assert ring is not None
    assert ring.values.itemsize == 2
    assert len(ring.values) == (HOUR.steps + 1) * (len(STATES) + len(FLOWS))


def test_time_without_rounds_is_a_gap_and_not_zero() -> None:
    rounds: Rounds = [(0.0, {"a": available("a", 1)}), (30.0, {"a": available("a", 2)})]
    rounds.append((300.0, {"a": reading("a", (0, 5, 0, 0, 0), (27, 0, 0, 0, 0))}))
    columns = watched(rounds)
    series = columns.series(columns.tracks["a"], HOUR).columns
    assert series["available"][-11:] == [1, 2, None, None, None, None, None, None, None, None, 5]
    assert series["in"][-1] == 0.1  # 27 in the 270 seconds since the round before


def test_a_queue_that_is_deleted_takes_its_past_along() -> None:
    rounds: Rounds = [(10.0 * number, {"a": available("a", number)}) for number in range(10)]
    history = watched([*rounds, (100.0, {}), (110.0, {"a": reading("a", (0, 1, 0, 0, 0), (5, 0, 0, 0, 0))})])
    track = history.tracks["a"]
    series = history.series(track, HOUR).columns
    assert series["available"][-4:] == [None, None, None, 1]
    assert history.happened(track, 60)[FLOWS.index("in")] == 5


def test_counters_that_start_again_belong_to_a_new_queue_of_that_name() -> None:
    first, second = reading("a", EMPTY, (100, 0, 0, 0, 0)), reading("a", EMPTY, (3, 0, 0, 0, 0))
    history = watched([(0.0, {"a": first}), (10.0, {"a": second})])
    assert history.happened(history.tracks["a"], 60)[FLOWS.index("in")] == 3


def test_what_was_counted_before_the_first_round_did_not_happen_now() -> None:
    history = watched([(0.0, {"a": reading("a", EMPTY, (100, 0, 0, 0, 0))}), (10.0, {"a": reading("a")})])
    assert watched([(0.0, {"a": reading("a", EMPTY, (100, 0, 0, 0, 0))})]).tracks["a"].hour is None
    assert history.rounds == 2


@pytest.mark.parametrize(
    ("before", "after", "flows"),
    [
        ((0, 0, 0, 0, 0), (1, 3, 0, 0, 0), (4, 0, 0, 0, 0)),
        ((0, 5, 1, 0, 0), (0, 2, 0, 0, 0), (0, 4, 0, 0, 0)),
        ((0, 5, 0, 0, 0), (0, 2, 0, 0, 1), (0, 2, 1, 0, 1)),
        ((0, 5, 0, 0, 0), (0, 4, 1, 0, 0), (0, 0, 0, 0, 0)),
    ],
)
def test_without_counters_the_counts_tell_what_has_happened(
    before: tuple[int, ...], after: tuple[int, ...], flows: tuple[int, ...]
) -> None:
    history = watched([(0.0, {"a": reading("a", before, None)}), (10.0, {"a": reading("a", after, None)})])
    assert tuple(history.happened(history.tracks["a"], 60)) == flows


def test_a_change_has_a_number_and_a_round_without_news_has_none() -> None:
    history = watched([(0.0, {"a": available("a", 1), "b": available("b", 1)})])
    changes = [history.change]
    for second, readings in enumerate(([("a", 1), ("b", 1)], [("a", 1), ("b", 2)], [("a", 1)]), 1):
        history.begin(second)
        history.take(available(*each) for each in readings)
        history.finish()
        changes.append(history.change)
    assert changes == [1, 1, 2, 3]
    assert history.tracks["a"].change == 1


def test_a_line_with_fewer_points_has_the_last_or_the_mean_of_its_neighbours() -> None:
    values = [None, 1, 2, 3, None, None]
    assert thinned(values, 3, mean=False) == [1, 3, None]
    assert thinned(values, 3, mean=True) == [1, 2.5, None]
    assert thinned(values, 120, mean=True) == values
