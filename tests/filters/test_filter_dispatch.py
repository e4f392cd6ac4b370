"""Dispatch finds the same filters as evaluating each, without evaluating all."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.filters import Expression, Field, Filter, Header, Subject, parse
from penstock.filters.dispatch import Dispatcher, is_exact, keys_of
from tests.filters.test_filters import NAMES, cast_leaves, field_leaves, subject, subjects, text_leaves, trees

KIND, SHARD = Header("kind"), Header("shard")


@pytest.mark.parametrize(
    ("text", "keys", "exact"),
    [
        ("kind = 'a'", {(KIND, "a")}, True),
        ("'a' = kind", {(KIND, "a")}, True),
        ("kind IN ('a', 'b')", {(KIND, "a"), (KIND, "b")}, True),
        ("shard = 7", {(SHARD, 7)}, True),
        ("priority = 7", {(Field("priority"), 7)}, True),
        ("kind = 'a' OR shard = 7", {(KIND, "a"), (SHARD, 7)}, True),
        ("kind = 'a' AND size > 10", {(KIND, "a")}, False),
        ("kind IN ('a', 'b') AND shard = 7", {(SHARD, 7)}, False),
        ("kind = 'a' AND size > 10 OR shard = 7", {(KIND, "a"), (SHARD, 7)}, False),
        ("kind = 'a' OR size > 10", None, False),
        ("kind != 'a'", None, False),
        ("NOT kind = 'a'", None, False),
        ("kind = shard", None, False),
        ("kind IS NULL", None, False),
        ("kind LIKE 'a'", None, False),
    ],
)
def test_a_filter_is_found_by_what_has_to_equal_a_literal(text: str, keys: Any, exact: bool) -> None:
    expression = parse(text).expression
    assert keys_of(expression) == keys
    assert is_exact(expression) is exact


def test_targets_come_in_the_order_in_which_they_were_given_and_once() -> None:
    texts = ["size > 0", "kind = 'b'", "shard = 7 OR kind = 'a'", "kind = 'a'", "kind = 'a' AND size > 1"]
    dispatcher = Dispatcher([(parse(text), number) for number, text in enumerate(texts)])
    assert dispatcher.matching(subject({"kind": "a", "shard": "07"}, size=1)) == [0, 2, 3]
    assert dispatcher.matching(subject({"kind": "c"}, size=0)) == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(trees(text_leaves(NAMES) | field_leaves | cast_leaves), max_size=8),
    st.lists(subjects, min_size=1, max_size=4),
)
def test_any_filters_at_once_match_what_each_matches_alone(
    expressions: list[Expression], those: list[Subject]
) -> None:
    filters = [Filter("", expression) for expression in expressions]
    dispatcher = Dispatcher([(each, number) for number, each in enumerate(filters)])
    for each in those:
        assert dispatcher.matching(each) == [number for number, one in enumerate(filters) if one.matches(each)]


def test_only_filters_that_a_message_may_match_are_asked() -> None:
    asked: list[str] = []

    class Watched(Filter):
        def matches(self, subject: Subject) -> bool:
            asked.append(self.text)
            return super().matches(subject)

    texts = [f"kind = 'kind-{number}' AND size > 0" for number in range(10_000)]
    dispatcher = Dispatcher([(Watched(text, parse(text).expression), text) for text in texts])
    assert dispatcher.matching(subject({"kind": "kind-77"}, size=1)) == [texts[77]]
    assert asked == [texts[77]]
