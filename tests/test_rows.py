"""The rows of a queue, whatever numbers are left out and whatever goes: the same as in a dict."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.index.rows import AVAILABLE, FAILED, PAGE, Rows

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([1, 1, 1, 2, 100, 130, 1500])),
        st.tuples(st.just("skip"), st.sampled_from([1, 3, 70, 500, PAGE - 1, PAGE, 3000])),
        st.tuples(st.just("insert"), st.integers(0, 5000)),
        st.tuples(st.just("drop"), st.integers(0, 5000)),
        st.tuples(st.just("drop most"), st.integers(2, 50)),
    ),
    max_size=30,
)


@given(st.sampled_from([1, 63, 64, 900, PAGE - 1, PAGE, 2 * PAGE + 5]), STEPS)
def test_rows_are_found_wherever_they_are(first: int, steps: list[tuple[str, int]]) -> None:
    rows = Rows(first)
    known: dict[int, int] = {}
    for what, number in steps:
        seq = rows.next_seq
        if what == "append" and number == 1:
            rows.append_one(AVAILABLE, seq, 0, 0)
            known[seq] = seq
        elif what == "append":
            seqs = range(seq, seq + number)
            rows.append(bytes([AVAILABLE]) * number, list(seqs), [0] * number, [0] * number)
            known |= {each: each for each in seqs}
        elif what == "skip":
            rows.skip_to(seq + number)
        elif what == "insert":
            late = first + number
            if late < seq and late not in known:
                rows.insert(late, FAILED, -late, 0, 0)
                known[late] = -late
        elif known:
            going = [sorted(known)[number % len(known)]] if what == "drop" else sorted(known)[::number]
            for each in going:
                rows.drop(each, *rows[each])
                del known[each]
        assert rows.next_seq >= seq
    assert {seq: page.priority[at] for seq in known for page, at in [rows[seq]]} == known
    assert list(rows.with_state(None)) == sorted(known)
    assert rows.live() == len(known)
    assert all(rows.find(seq) is None for seq in range(first, rows.next_seq) if seq not in known)
    copied = rows.copy()
    assert list(copied.with_state(None)) == sorted(known)
    last = rows.next_seq
    rows.append_one(AVAILABLE, 7, 0, 0)
    assert rows[last][0].priority[rows[last][1]] == 7
