"""Message brokers to compare with, each set to be durable: an operation is synced before its answer.

    broker             syncs per put   claim   acknowledge
    beanstalkd         1               0       1             for each message by itself
    RabbitMQ classic   1               0       0             a consumer that waits has it before it is synced
    RabbitMQ quorum    1               0       1             acknowledgements go unanswered with both
    PostgreSQL         1               1       1
    Redis, both        1               1       1             what was acknowledged stays in a stream

All but beanstalkd sync once for all waiting requests. Each has a module with its processes and its protocol.
"""

from benchmarks.brokers.beanstalkd import Beanstalkd
from benchmarks.brokers.penstock import Penstock
from benchmarks.brokers.postgresql import PostgreSQL
from benchmarks.brokers.process import Broker
from benchmarks.brokers.rabbitmq import RabbitClassic, RabbitQuorum
from benchmarks.brokers.redis import RedisList, RedisStream

__all__ = ["EVERY", "Broker", "Penstock", "missing"]

EVERY: list[type[Broker]] = [Beanstalkd, RabbitClassic, RabbitQuorum, PostgreSQL, RedisStream, RedisList]


def missing() -> list[str]:
    """A line for each broker that is not installed."""
    absent = [broker for broker in EVERY if broker.program() is None]
    return [f"not compared with {each.name}: apt-get install {each.package} brings it" for each in absent]
