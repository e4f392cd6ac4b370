"""Errors have one base class, an explanation and a public name, and can be pickled."""

import pickle

import pytest

import penstock
from penstock import errors
from penstock.contract import refusals

ALL = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, penstock.PenstockError)
]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_is_a_penstock_error_with_an_explanation_and_a_public_name(
    kind: type[penstock.PenstockError],
) -> None:
    assert kind.__doc__
    assert getattr(penstock, kind.__name__) is kind


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not penstock.LeaseExpired])
def test_an_error_survives_pickling(kind: type[penstock.PenstockError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(copy) is kind
    assert str(copy) == "what happened"


def test_advice_is_part_of_the_text_for_python_and_survives_pickling() -> None:
    error = refusals.not_found("a/b c")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "there is no queue 'a/b c': create it with store.create('a/b c')"
    assert (copy.what, copy.advice) == ("there is no queue 'a/b c'", error.advice)
    assert copy.advice is not None
    assert copy.advice.command.startswith("`penstock create 'a/b c'` creates it")
    assert copy.advice.http.startswith("create it with PUT /a%2Fb%20c")


def test_lost_receipts_survive_pickling() -> None:
    error = penstock.LeaseExpired("jobs", ["a", "b", "c", "d"])
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.queue, copy.receipts, str(copy)) == ("jobs", ["a", "b", "c", "d"], str(error))
    assert "4 receipt(s) of queue 'jobs' no longer hold their message (a, b, c, ...)" in str(error)
