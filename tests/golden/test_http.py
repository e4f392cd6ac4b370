"""The server's answers on every route, byte by byte."""

import json
import re
from pathlib import Path

import pytest

import penstock
from tests.golden.conversations import AREAS
from tests.golden.expectations import compare, compare_variant
from tests.golden.folders import compare_files
from tests.golden.normaliser import Normaliser
from tests.golden.processes import Server, Shell, Time
from tests.golden.talk import Talk

_CASES = [(area, store) for area, each in AREAS.items() for store in each.stores]


def _url(store: str, folder: Path) -> str:
    return "memory:" if store == "memory" else f"{store}:{folder / 'store'}"


@pytest.mark.parametrize(("area", "store"), _CASES, ids=lambda each: str(each))
def test_a_conversation_goes_as_it_always_went(area: str, store: str, tmp_path: Path) -> None:
    time = Time(tmp_path / "time")
    conversation, stores, options = AREAS[area]
    secrets = _tokens(time, tmp_path) if options else {}
    normaliser = Normaliser(folder=str(tmp_path))
    url = _url(store, tmp_path)
    with Server(time, url, *options) as server, Talk(server.port, time, normaliser, secrets) as talk:
        conversation(talk)
    text = _without_figures(talk.text())
    if store == stores[0]:
        compare(f"http/{area}.txt", text)
    else:
        compare_variant(f"http/{area}.txt", store, text)
    if area in ("streams", "followers", "loads"):
        compare_files(f"files/{area}.{store}.txt", tmp_path)


def _tokens(time: Time, folder: Path) -> dict[str, str]:
    shell = Shell(time, folder)
    made = {
        role: shell.run("token", "create", f"a-{role}", "--role", role, "--tokens", "tokens").out.strip()
        for role in ("read", "write", "consume", "admin")
    }
    shell.end()
    return made


def _without_figures(text: str) -> str:
    """Metrics without the numbers that depend on the machine, and without the length that depends on those."""
    if "# TYPE" not in text:
        return text
    text = text.replace(f'version="{penstock.__version__}"', 'version="<version>"')
    text = re.sub(r"(?m)^(< (?:process_|penstock_(?:commit|disk)_)\S+) \S+$", r"\1 <number>", text)
    return re.sub(r"(text/plain; version=\S+ charset=utf-8\n< Content-Length:) \d+", r"\1 <number>", text)


def test_the_description_is_the_same_for_programs_and_for_people(tmp_path: Path) -> None:
    time = Time(tmp_path / "time")
    with Server(time, "memory:") as server, Talk(server.port, time, Normaliser(), {}) as talk:
        document = talk("GET", "/-/openapi.json").json
        page = talk("GET", "/-/docs").body.decode()
    document["info"]["version"] = "<version>"
    compare("http/openapi.json", json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    compare("http/docs.html", page.replace(penstock.__version__, "<version>"))
