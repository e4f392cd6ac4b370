"""The systems that are compared, with their servers, workers and settings.

Each runs eight jobs at a time, in the way that its documentation recommends: in processes, threads or coroutines.
All but Procrastinate are measured twice: with what their documentation gives for production, and set to be
durable. `survives` tells whether a job whose put has returned survives power loss, until it has run.

Redis as it is shipped writes a snapshot now and then; "synced" it syncs its file before it answers. Celery's puts
to RabbitMQ are not confirmed unless it is told so, and its workers acknowledge before they run a job. Huey's
SQLite does not sync unless it is told so. PostgreSQL syncs as it is shipped.
"""

from dataclasses import dataclass

from benchmarks.brokers.connection import HOST
from benchmarks.brokers.penstock import Penstock
from benchmarks.brokers.postgresql import PostgreSQL
from benchmarks.brokers.process import Broker
from benchmarks.brokers.rabbitmq import RabbitClassic
from benchmarks.brokers.redis import RedisList, ShippedRedis


class Files(Broker):
    """No server: producer and workers open files."""

    name, package = "files", "files"

    def start(self) -> None:
        """There is nothing to start."""


@dataclass(frozen=True)
class Library:
    """A library with the command of its worker, in which {port} is that of the server."""

    app: str  # its module in `apps`
    worker: tuple[str, ...]
    packages: tuple[str, ...] = ()  # that its programs need; none: they run where this does
    jobs: int = 1_000  # of a measurement: a second or some
    batches: int = 0  # jobs of a measurement with the call that puts many; 0: it has none
    greets: bool = False  # whether its worker says when it is ready; then it comes before the producer
    tables: bool = False  # whether its app, run by itself, has to create tables first


@dataclass(frozen=True)
class System:
    """A library with a server and settings. In `url`, {port} and {folder} are the server's."""

    name: str
    library: Library
    broker: type[Broker]
    url: str
    survives: str

    @property
    def durable(self) -> bool:
        """Whether it is set to be durable."""
        return self.survives != NO

    def missing(self) -> str | None:
        """What brings its server, if that is not installed."""
        if self.broker in (Files, Penstock) or self.broker.program():
            return None
        return f"apt-get install {self.broker.package} brings it"


REDIS, RABBIT = f"redis://{HOST}:{{port}}/0", f"amqp://guest:guest@{HOST}:{{port}}//"
POSTGRES = f"host={HOST} port={{port}} user=postgres dbname=postgres"
APPS = "benchmarks.jobs.apps"
GREETING = "ready"

OWN = Library("penstock", ("python", "-m", f"{APPS}.penstock"), jobs=5_000, batches=30_000, greets=True)
CELERY = Library("celery", ("celery", "-A", f"{APPS}.celery", "worker", "--concurrency", "8"), ("celery",))
DRAMATIQ = Library(
    "dramatiq", ("dramatiq", f"{APPS}.dramatiq", "--processes", "2", "--threads", "4"), ("dramatiq",)
)
RQ = Library("rq", ("rq", "worker-pool", "--num-workers", "8", "--url", REDIS), ("rq",), jobs=100, batches=100)
HUEY = Library("huey", ("huey_consumer", f"{APPS}.huey.huey", "--workers", "8"), ("huey",))
PROCRASTINATE = Library(
    "procrastinate",
    ("procrastinate", "--app", f"{APPS}.procrastinate.app", "worker", "--concurrency", "8"),
    ("procrastinate", "psycopg"),
    batches=1_000,
    tables=True,
)
TASKIQ = Library(
    "taskiq",
    ("taskiq", "worker", f"{APPS}.taskiq:broker", "--workers", "2", "--max-async-tasks", "4"),
    ("taskiq", "taskiq-redis"),
)

YES, NO = "yes", "no"
UNTIL_TAKEN = "until a worker takes it: it is taken out before it runs"

EMBEDDED = System("Penstock", OWN, Files, "{folder}/store", YES)
SERVED = System("Penstock served", OWN, Penstock, f"http://{HOST}:{{port}}", YES)
PEERS = [
    System("Celery, Redis", CELERY, ShippedRedis, REDIS, NO),
    System("Celery, Redis synced", CELERY, RedisList, REDIS, YES),
    System("Celery, RabbitMQ", CELERY, RabbitClassic, RABBIT, NO),
    System("Celery, RabbitMQ confirmed", CELERY, RabbitClassic, RABBIT, YES),
    System("Dramatiq, Redis", DRAMATIQ, ShippedRedis, REDIS, NO),
    System("Dramatiq, Redis synced", DRAMATIQ, RedisList, REDIS, YES),
    System("RQ, Redis", RQ, ShippedRedis, REDIS, NO),
    System("RQ, Redis synced", RQ, RedisList, REDIS, YES),
    System("Huey, SQLite", HUEY, Files, "{folder}/jobs.db", NO),
    System("Huey, SQLite synced", HUEY, Files, "{folder}/jobs.db", UNTIL_TAKEN),
    System("Huey, Redis", HUEY, ShippedRedis, REDIS, NO),
    System("Huey, Redis synced", HUEY, RedisList, REDIS, UNTIL_TAKEN),
    System("Procrastinate, PostgreSQL", PROCRASTINATE, PostgreSQL, POSTGRES, YES),
    System("taskiq, Redis", TASKIQ, ShippedRedis, REDIS, NO),
    System("taskiq, Redis synced", TASKIQ, RedisList, REDIS, YES),
]
