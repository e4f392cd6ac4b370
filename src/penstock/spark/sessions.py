"""A Spark session that is ready for Penstock, on this machine or on a cluster."""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from penstock.errors import InvalidArgument, NotSupported
from penstock.spark.java import java_home
from penstock.spark.python import site_packages, worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIB = 1 << 30
_lock = threading.Lock()


def session(master: str | None = None, **conf: object) -> "SparkSession":
    """The Spark session to work with; a new one runs on this machine alone, or on `master`.

        spark = penstock.spark.session()
        spark = penstock.spark.session("spark://host:7077", **{"spark.executor.memory": "8g"})

    `conf` has Spark's own names. If this process has a session already, that is the one, whoever made it: with
    the settings that were asked for, of which those that only a new session can have are left as they are, with
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
