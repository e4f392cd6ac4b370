"""Every file in expected/ belongs to a test."""

from tests.golden.conversations import AREAS
from tests.golden.expectations import EXPECTED, snapshot
from tests.golden.scenario import RUNS
from tests.golden.test_cli import SESSIONS
from tests.golden.test_files import KEPT, KINDS, named


def test_every_file_of_expected_belongs_to_a_test() -> None:
    names = {"client.txt", "client.streams.txt", "http/openapi.json", "http/docs.html"}
    names |= {f"files/{kind}.{what}" for kind in KINDS for what in ("txt", "packed.txt")}
    names |= {f"files/{named(kind, what)}.found.txt" for kind in KINDS for what in RUNS}
    names |= {f"files/{area}.{store}.txt" for area, each in AREAS.items() for store in each.stores}
    names |= {f"http/{area}.txt" for area in AREAS}
    names |= {f"http/{area}.{store}.txt" for area, each in AREAS.items() for store in each.stores[1:]}
    names |= {f"cli/{path.stem}.txt" for path in SESSIONS.glob("*.txt")}
    names |= {f"stores/{path.parent}/{path.name.partition('.')[0]}.txt" for path in KEPT}
    assert not snapshot().keys() - names, f"remove what nothing compares with from {EXPECTED}"
