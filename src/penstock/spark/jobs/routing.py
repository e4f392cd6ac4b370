"""The job route: delivers the log of a slate store to the queues whose filters match, by a Spark stream.

The store keeps each queue's position in the log, and writes it together with the delivered messages. So a message
is delivered once, even if Spark repeats a batch, a checkpoint is lost or old, or the store's own router runs in
between.
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
from penstock.spark.jobs.runs import Session, Summary, check_folder, check_store, own_session, run_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 200_000  # log entries in one batch
_COLUMNS = ("queue", "routed")
_LOOK = 0.5  # seconds between two calls of stopped()


def route(
    spark: Session,
    store: str,
    *,
    available_now: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    rows: int = _ROWS,
    interval: float = 1.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Summary:
    """Deliver published messages to matching queues, until stopped() or, with `available_now`, the end of the log.

        penstock.spark.jobs.route(spark, "slate:data?router=off", available_now=True)

    Args:
        spark: a session
        store: a slate store; this process opens it, without its own router, if no other has it open
        available_now: stop at the end of the log
        checkpoint: the folder of Spark's checkpoint; by default beside the store
        rows: log entries in one batch
        interval: seconds between two batches
        stopped: called twice a second; True ends the routing
    """
    if not kind_of(store).has_log:
        raise NotSupported(f"store {store!r} keeps no log: what is published there is put into queues at once")
    if rows < 1:
        raise InvalidArgument(f"rows={rows}: look at one at least")
    url = kind_of(store).absolute(store)
    check_store(url)
    if checkpoint is not None and "://" not in os.fspath(checkpoint):
        check_folder("checkpoint", checkpoint)
    session = own_session(spark)
    with closing(kind_of(url).tables(url).router(url, penstock.open)) as router:
        routing = _Routing(router)
        stream = session.readStream.format("penstock")
        stream = stream.options(store=url, table="log", maxRowsPerBatch=str(rows), _route="true")
        # The store's position. Spark ignores it if the checkpoint has one.
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
            if not stopped():  # Spark's own processes get the same Ctrl-C, and fail
                raise
        finally:
            query.stop()
    routed = sorted(routing.routed.items())
    return Summary("route", run_id(None, "route", store=url), _COLUMNS, routed)


class _Routing:
    """Hands batches of the log to the store's owner, and counts messages by queue."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.routed: Counter[str] = Counter()

    def deliver(self, batch: "DataFrame", number: int) -> None:
        """The function for foreachBatch."""
        self.routed.update(self._router.deliver(batch.toArrow()))
