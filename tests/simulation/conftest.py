"""Determinism: entropy, process id and consumer are the same in every run; only the seed decides."""

import os
from random import Random

import pytest

from penstock.contract import arguments
from penstock.stores.journal import files, storage
from tests.simulation.scripts import SECTOR


@pytest.fixture(autouse=True)
def nothing_but_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = Random(0)
    monkeypatch.setattr(os, "urandom", entropy.randbytes)  # receipts
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the lock says who has it
    monkeypatch.setattr(arguments, "_this_process", lambda pid: "simulated:1")  # consumers


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filling that ends after a few groups, so that its end is met as often as in days of work."""
    for module in (storage, files):
        monkeypatch.setattr(module, "FILLING", 1024)
        monkeypatch.setattr(module, "SECTOR", SECTOR)
