"""The job `route`: the log of a slate store is routed in bulk, by a stream of Spark.

How far each queue is, the store says, which writes that with what it delivers; so a batch that Spark repeats, a
checkpoint that is lost or of another time, and the store's own router at work in between change nothing.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import penstock
from penstock.contract.kinds import kind_of
from penstock.contract.tables import Router
from penstock.errors import InvalidArgument, NotSupported
from penstock.spark.jobs.runs import Summary, check_store, own_session, run_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 200_000  # numbers of the log in one batch
_COLUMNS = ("queue", "routed")
_LOOK = 0.5  # seconds between two looks at whether to stop


def route(
    spark: "SparkSession",
    store: str,
    *,
    available_now: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    rows: int = _ROWS,
    interval: float = 1.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Summary:
    """Deliver what was published to the queues that want it, until it is stopped or, with `available_now`, all is.

        penstock.spark.jobs.route(spark, "slate:data?router=off", available_now=True)

    store: a slate store; if no process has it open this one does, with its own router off
    checkpoint: a folder for Spark's notes; by default beside the store
    rows: numbers of the log that are looked at in one batch
    interval: seconds between two looks at the log
    stopped: asked twice a second; once it says so, routing ends
    """
    if not kind_of(store).has_log:
        raise NotSupported(f"store {store!r} keeps no log: what is published there is put into queues at once")
    if rows < 1:
        raise InvalidArgument(f"rows={rows}: look at one at least")
    url = kind_of(store).absolute(store)
    check_store(url)
    session = own_session(spark)
    with closing(kind_of(url).tables(url).router(url, penstock.open)) as router:
        routing = _Routing(router)
        stream = session.readStream.format("penstock")
        stream = stream.options(store=url, table="log", maxRowsPerBatch=str(rows), _route="true")
        # Where the store is; of a checkpoint that is there Spark takes no other start.
        frame = stream.option("startingOffset", str(router.position())).load()
        writing = frame.writeStream.foreachBatch(routing.deliver)
        writing = writing.option("checkpointLocation", os.fspath(checkpoint or router.checkpoint))
        trigger = writing.trigger(availableNow=True) if available_now else writing.trigger(
            processingTime=f"{interval} seconds"
        )  # fmt: skip
        query = trigger.start()
        try:
            while not stopped() and not query.awaitTermination(_LOOK):  # type: ignore[arg-type]
                pass
        except Exception:
            if not stopped():  # else Spark's own processes have heard the same signal
                raise
        finally:
            query.stop()
    routed = sorted(routing.routed.items())
    return Summary("route", run_id(None, "route", store=url), _COLUMNS, routed)


class _Routing:
    """Batches of the log on their way to the owner."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.routed: Counter[str] = Counter()

    def deliver(self, batch: "DataFrame", number: int) -> None:
        """Have delivered what queues want of a batch."""
        self.routed.update(self._router.deliver(batch.toArrow()))
