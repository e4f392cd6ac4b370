"""How the server is."""

from penstock.contract.schemas import answer as members
from penstock.http.server import exposition
from penstock.http.server.description.operation import Operation, answer

_TAG = "Monitoring"


def _status(value: str) -> dict[str, dict[str, object]]:
    schema = members({"status": {"const": value, "description": "It is."}})
    return {"200": answer("It is.", schema, {"status": value})}


OPERATIONS = [
    Operation(
        call="GET /-/healthz",
        id="healthz",
        tag=_TAG,
        summary="Is the process alive?",
        description="Whatever its store is: who gets no answer here restarts it.",
        answers=_status("ok"),
    ),
    Operation(
        call="GET /-/readyz",
        id="readyz",
        tag=_TAG,
        summary="Can it be given work?",
        description="503 if it is stopping, if its store has failed, or if a commit hangs.",
        answers=_status("ready"),
    ),
    Operation(
        call="GET /-/metrics",
        id="metrics",
        tag=_TAG,
        summary="Numbers for Prometheus",
        description=(
            "Of each queue: messages by state, the age of the oldest, events, lease expiries; histograms of how "
            "long commits take and how much each makes durable; the server and its process."
        ),
        answers={
            "200": {
                "description": "Prometheus text format.",
                "content": {exposition.MEDIA_TYPE: {"schema": {"type": "string"}}},
            }
        },
    ),
]
