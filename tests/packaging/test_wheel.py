"""The wheel, in an environment with nothing but what it declares. `make dist` tests more, and takes longer."""

import tarfile
import zipfile
from pathlib import Path

import pytest

import penstock
from tests.packaging.distributions import build, environment, install, keep_promise, link_dependencies, use


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"), "--no-isolation")


def test_a_user_of_the_wheel_gets_through_the_quick_start(built: list[Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(python, "--no-deps", str(built[0]))
    link_dependencies(python)
    use(python, tmp_path / "work")


def test_the_extra_server_brings_a_faster_loop(built: list[Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(python, "--no-deps", str(built[0]))
    link_dependencies(python, "server")
    keep_promise(python, "server", tmp_path / "work")


def test_the_wheel_is_packages_and_their_metadata(built: list[Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"penstock", "pyspark_penstock"}
    assert "penstock/py.typed" in names
    console = Path(penstock.__file__).parent / "http" / "console"
    assert {f"penstock/http/console/{file.name}" for file in console.iterdir()} < set(names)


def test_the_source_distribution_is_what_builds_and_nothing_else(built: list[Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = sdist.getnames()
    assert {name.split("/")[1] for name in names} == {
        "src", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore",
    }  # fmt: skip
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
