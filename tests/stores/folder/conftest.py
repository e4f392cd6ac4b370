"""A folder store in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with penstock.open(f"folder:{folder}") as store:
        store.create("jobs")
        yield store
