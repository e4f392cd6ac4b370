"""Rows compared with a dict, through random appends, skipped numbers, inserts and drops."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.rows import AVAILABLE, GONE, PAGE, Rows

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40) | st.sampled_from([PAGE - 1, PAGE, 2 * PAGE + 3])),
    st.tuples(st.just("one"), st.none()),
    st.tuples(st.just("skip"), st.integers(1, 300) | st.sampled_from([PAGE, 3 * PAGE])),
    st.tuples(st.just("insert"), st.floats(0, 1)),
    st.tuples(st.just("claim"), st.floats(0, 1)),
    st.tuples(st.just("drop"), st.floats(0, 1)),
)


class Model:
    """Rows, and a dict of the values that they must have."""

    def __init__(self) -> None:
        self.rows = Rows(1)
        self.known: dict[int, list[object]] = {}
        self.count = 0
        self.used: set[int] = set()

    def step(self, what: str, value: float | None) -> None:
        rows = self.rows
        if what in ("append", "one"):
            many = int(value or 1)
            first, ranks = rows.next_seq, list(range(self.count, self.count + many))
            self.count += many
            if what == "one":
                rows.append_one(AVAILABLE, ranks[0], 7, 0)
            else:
                rows.append(bytes([AVAILABLE]) * many, ranks, [7] * many, [0] * many)
            rows.place(first, ranks, [1] * many, [2] * many)
            self.used.update(range(first, first + many))
            self.known |= {first + at: [rank, rank, None] for at, rank in enumerate(ranks)}
        elif what == "skip":
            rows.skip_to(rows.next_seq + int(value or 0))
        elif what == "insert":
            number = int((value or 0) * (rows.next_seq - 1)) or 1
            if number not in self.used and number < rows.next_seq:
                self.used.add(number)
                rows.insert(number, AVAILABLE, -1, 7, 0)
                self.known[number] = [-1, 0, None]
        elif self.known:
            number = sorted(self.known)[int((value or 0) * (len(self.known) - 1))]
            page, at = rows[number]
            if what == "claim":
                page.for_claims(at).consumer[at] = f"c{number}"
                self.known[number][2] = f"c{number}"
            else:
                rows.drop(number, page, at)
                del self.known[number]

    def check(self, rows: Rows) -> None:
        assert list(rows.with_state(None)) == sorted(self.known)
        assert rows.live() == len(self.known)
        for number, (rank, place, consumer) in self.known.items():
            page, at = rows[number]
            assert page.state[at] != GONE
            assert (page.priority[at], page.place[at]) == (rank, place)
            assert page.for_claims(at).consumer[at] == consumer
        for number in (0, rows.next_seq, rows.next_seq + PAGE):
            assert rows.find(number) is None


@given(st.lists(STEP, max_size=25))
def test_rows_are_found_as_they_were_put(steps: list[tuple[str, float | None]]) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
    model.check(model.rows.copy())
    model.check(model.rows)


@given(st.lists(STEP, max_size=15), st.lists(STEP, max_size=10))
def test_pages_that_were_taken_over_go_on(
    before: list[tuple[str, float | None]], after: list[tuple[str, float | None]]
) -> None:
    model = Model()
    for step in before:
        model.step(*step)
    taken = Rows(1)
    for first, page in model.rows.pages():
        taken.adopt(first, page.copy())
    taken.skip_to(max(taken.next_seq, model.rows.next_seq))
    model.rows = taken
    for step in after:
        model.step(*step)
    model.check(model.rows)


def test_a_message_among_thousands_of_others_takes_no_room_for_them() -> None:
    rows = Rows(1)
    for number in range(500, 500_000, 1_000):
        rows.skip_to(number)
        rows.append_one(AVAILABLE, 0, 0, 0)
        rows.place(number, [0], [1], [0])
    assert all(len(page.state) <= 2 for _, page in rows.pages())
