"""Penstock as users get it: built, installed into an empty environment, and used there as the README says."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.request import Request, urlopen

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

# What each extra promises, as a program that needs nothing but Penstock and that extra.
PROMISES = {
    "server": """
from penstock.http.server.server import new_loop
loop = new_loop()
assert type(loop).__module__.startswith("uvloop"), loop
loop.close()
""",
    "slate": """
import penstock
with penstock.open("slate:data") as store:
    store.queue().put(b"a")
    assert store.queue().pop().payload == b"a"
""",
    "spark": """
import penstock, penstock.spark
with penstock.open("data") as store:
    store.queue().put_many([b"a", b"b"])
spark = penstock.spark.session()
read = spark.read.format("penstock").option("store", "data").load()
assert read.where("state = 'available'").count() == 2
read.selectExpr("upper(cast(payload AS string)) AS payload").write.format("penstock").mode("append").option(
    "store", "data").option("queue", "default").save()
spark.stop()
with penstock.open("data") as store:
    assert store.queue().count() == 4
""",
    "otel": """
import penstock
from opentelemetry import trace
with penstock.open("memory:") as store:  # the API alone makes no spans
    store.queue().put(b"a")
    assert store.queue().pop().headers == {}
""",
    "report": """
import pathlib, penstock, penstock.spark
from penstock.spark import jobs
penstock.open("data").close()
spark = penstock.spark.session()
jobs.report(spark, "data", "out")
assert pathlib.Path("out/report.html").is_file()
spark.stop()
""",
}


def build(out: Path, *how: str) -> list[Path]:
    """Build wheel and source distribution, or what `how` says."""
    run(sys.executable, "-m", "build", "--outdir", str(out), *how, str(ROOT))
    return sorted(out.glob("penstock-*"))


def environment(folder: Path, python: str = sys.executable) -> Path:
    """An empty virtual environment: its Python. It has no pip either, so pip is no hidden dependency."""
    run(python, "-m", "venv", "--without-pip", str(folder))
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install into an environment, with the versions that the tests ran with."""
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install")
    run(*pip, "--quiet", "--constraint", str(CONSTRAINTS), *what)


def link_dependencies(python: Path, *extras: str) -> None:
    """Give an environment the declared dependencies from the one that runs this, and nothing else of it."""
    needed, packages = {"penstock"}, next(python.parents[1].glob("lib/python*/site-packages"))
    waiting = [distribution_in(packages, "penstock")]
    while waiting:
        one = waiting.pop()
        for line in one.requires or ():
            requirement = Requirement(line)
            contexts = [{"extra": extra} for extra in ("", *(extras if one.name == "penstock" else ()))]
            wanted = requirement.marker is None or any(map(requirement.marker.evaluate, contexts))
            if wanted and requirement.name not in needed:
                needed.add(requirement.name)
                waiting.append(distribution(requirement.name))
                link(waiting[-1], packages)


def link(one: Distribution, packages: Path) -> None:
    """Link the files of a distribution, but for its commands."""
    for top in {file.parts[0] for file in one.files or () if ".." not in file.parts}:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(one.locate_file(top))))


def distribution_in(packages: Path, name: str) -> Distribution:
    """A distribution that was installed into a folder."""
    return next(iter(Distribution.discover(name=name, path=[str(packages)])))


def use(python: Path, folder: Path) -> None:
    """All that the README has a new user do: in Python, on the command line, over HTTP."""
    folder.mkdir()
    where = run(str(python), "-c", "import penstock; print(penstock.__file__)", cwd=folder)
    assert where.startswith(str(python.parents[1])), f"{where} is not what was installed"
    run(str(python), "-c", quick_start(), cwd=folder)
    command_line(str(python.with_name("penstock")), folder)
    serve(str(python.with_name("penstock")), folder)


def quick_start() -> str:
    """The first program of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def command_line(penstock: str, folder: Path) -> None:
    """Create a queue, put a message, list."""
    at = (penstock, "--store", "of-commands")
    run(*at, "create", "jobs", cwd=folder)
    run(*at, "put", "jobs", "resize cat.jpg", cwd=folder)
    listed = json.loads(run(*at, "list", "--json", cwd=folder))
    assert {queue["name"]: queue["counts"]["available"] for queue in listed} == {"default": 0, "jobs": 1}
    assert set(json.loads(run(penstock, "--version", "--json", cwd=folder))) == {"version", "formats"}


def serve(penstock: str, folder: Path) -> None:
    """Serve a store, put a message over HTTP and take it out again; SIGTERM ends the server with exit code 0."""
    command = [penstock, "--store", "served", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, env=surroundings(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["url"]
            with urlopen(Request(f"{url}/default/messages", b"resize cat.jpg", method="POST"), timeout=30) as put:
                assert put.status == 201
            with urlopen(f"{url}/default/messages", timeout=30) as claimed:
                assert claimed.read() == b"resize cat.jpg"
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def keep_promise(python: Path, extra: str, folder: Path) -> None:
    """Run the program of an extra."""
    folder.mkdir()
    run(str(python), "-W", "ignore", "-c", PROMISES[extra], cwd=folder)


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command that must succeed; its output."""
    ended = subprocess.run(command, cwd=cwd, env=surroundings(), capture_output=True, text=True)
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def surroundings() -> dict[str, str]:
    """The environment, without what would let another Penstock or its settings in."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}
