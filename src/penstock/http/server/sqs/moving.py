"""Move tasks: messages of a dead-letter queue go back, or to another queue, in the background."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any

from penstock.contract.operations import Counts, Messages, Move, Redrive
from penstock.errors import PenstockError
from penstock.http.server.sqs.errors import FAULTS, SqsError, as_sqs

_AT_ONCE = 500
_KEPT = 10  # tasks of a queue
_MOST_KEPT = 1_000  # tasks of all queues
_HANDLE = re.compile(r"[0-9]+-[0-9a-f]{16}", re.ASCII)
_log = logging.getLogger("penstock.server")


class MoveTask:
    """A task: from which queue, where to, and how far it is."""

    def __init__(self, source: str, target: str | None, rate: int | None, number: int) -> None:
        self.handle = f"{number}-{os.urandom(8).hex()}"
        self.source = source
        self.target = target
        self.rate = rate  # messages a second; None: as fast as it goes
        self.status = "RUNNING"
        self.moved = 0
        self.to_move: int | None = None
        self.failure: str | None = None
        self.started = int(time.time() * 1000)
        self.running: asyncio.Task[None] | None = None
        self.after = ""  # the last message that was looked at

    def told(self, arn: Callable[[str], str]) -> dict[str, Any]:
        """The task as an entry of ListMessageMoveTasks."""
        entry = {
            "TaskHandle": self.handle if self.status == "RUNNING" else None,
            "Status": self.status,
            "SourceArn": arn(self.source),
            "DestinationArn": None if self.target is None else arn(self.target),
            "MaxNumberOfMessagesPerSecond": self.rate,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "FailureReason": self.failure,
            "StartedTimestamp": self.started,
        }
        return {name: value for name, value in entry.items() if value is not None}


class MoveTasks:
    """The tasks of a server. They end with it: each message is in one of the two queues, and stays there."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._tasks: list[MoveTask] = []
        self._number = 0

    def start(self, source: str, target: str | None, rate: int | None) -> MoveTask:
        """Start a task; SqsError while another of the same queue runs."""
        if any(task.source == source and task.status == "RUNNING" for task in self._tasks):
            raise SqsError(
                "InvalidParameterValueException",
                "There is already a task running. Only one active task is allowed for a source queue arn at a "
                "given time.",
            )
        self._number += 1
        task = MoveTask(source, target, rate, self._number)
        task.running = asyncio.get_running_loop().create_task(self._run(task))
        kept = [each for each in self._tasks if each.source == source][: _KEPT - 1]
        others = [each for each in self._tasks if each.source != source]
        self._tasks = sorted([task, *kept, *others], key=lambda each: -each.started)[:_MOST_KEPT]
        return task

    def of(self, source: str) -> list[MoveTask]:
        """The tasks of a queue, the latest first."""
        return [task for task in self._tasks if task.source == source]

    def cancel(self, handle: str) -> int:
        """Stop a running task; how many messages it has moved. SqsError if there is no such task."""
        if not _HANDLE.fullmatch(handle):
            raise SqsError("InvalidParameterValueException", "Value for parameter TaskHandle is invalid.")
        for task in self._tasks:
            if task.handle == handle and task.running is not None:
                if task.status != "RUNNING":
                    raise SqsError(
                        "UnsupportedOperation", f"The task is {task.status}: only a running one is stopped."
                    )
                task.status = "CANCELLED"
                task.running.cancel()
                return task.moved
        raise SqsError("ResourceNotFoundException", "Task does not exist.")

    def stop(self) -> None:
        """Stop all tasks: the server ends."""
        for task in self._tasks:
            if task.running is not None:
                task.running.cancel()

    async def _run(self, task: MoveTask) -> None:
        try:
            counts = await self._backend.run(Counts(task.source))
            task.to_move = left = counts["available"] + counts["delayed"] + counts["failed"]
            while left > 0 and (ids := await self._next(task, min(left, task.rate or _AT_ONCE, _AT_ONCE))):
                if task.target is None:
                    moved = await self._backend.run(Redrive(task.source, ids))
                else:
                    moved = await self._backend.run(Move(task.source, task.target, ids))
                task.moved += moved
                left -= len(ids)
                if task.rate and left > 0:
                    await asyncio.sleep(len(ids) / task.rate)
            task.status = "COMPLETED"
        except asyncio.CancelledError:
            task.status = "CANCELLED"
        except PenstockError as error:
            task.status, task.failure = "FAILED", as_sqs(error).fault.code
        except Exception as error:
            task.status, task.failure = "FAILED", FAULTS["InternalFailure"].code
            _log.exception("a move task failed", exc_info=error)

    async def _next(self, task: MoveTask, most: int) -> list[str]:
        """The ids of the next messages: those that wait or have failed."""
        ids: list[str] = []
        listing = Messages(task.source, most, fields=("id", "state"), after=task.after)
        async for message in self._backend.listed(listing):
            task.after = message.id
            if message.state in ("available", "delayed", "failed"):
                ids.append(message.id)
                if len(ids) == most:
                    break
        return ids
