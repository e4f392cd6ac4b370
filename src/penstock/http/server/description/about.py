"""What the document says before its operations, and where the server describes itself."""

from penstock.contract.message import MAX_MESSAGES
from penstock.http.server.description.operation import Operation, answer, header
from penstock.wire import frames

ABOUT = """\
Producers put messages into queues; consumers claim them for as long as a lease lasts, and acknowledge them once
the work is done. A message that is not acknowledged comes back. Success means that the change is on stable
storage.

Names and ids are percent-encoded, each in one segment of the path: queue `a/b` is `/a%2Fb`. Times are integer
milliseconds since 1970 (UTC), durations are seconds. `HEAD` works where `GET` changes nothing. Query parameters
and members of a body that are not listed here are refused.

A server may ask for a token, `Authorization: Bearer TOKEN`. Each operation says which role that needs; `admin`
includes the others. One that asks for none answers no web page of another origin, and only requests whose `Host`
is an IP address, `localhost` or a name that it was told (`--allow-host`)."""
SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": (
            "What `penstock token create` printed. Roles: `read`, `write`, `consume`, `admin`, of which the last "
            "includes the others. A server that was started without tokens asks for none."
        ),
    }
}
_BATCHES = f"""\
The rest of the contract. A batch of messages is JSON for people, or a frame for speed: `Content-Type` says which
one a request has, `Accept` which one the answer shall have (JSON, unless it names the frame's type). A batch has
at most {MAX_MESSAGES:,} messages and {frames.MAX_BYTES >> 20} MiB.

A frame, `{frames.MEDIA_TYPE}`, is the length of its head as u32 big-endian, the head, then the
payloads, one right after the other. The head is a JSON object in UTF-8 with `sizes`, the length of each payload,
and columns: the name of a field, and either a list with a value for each message, or one value (never a list) that
holds for all. What is missing has its default (drafts) or is null (messages)."""
_LOADS = """\
Many messages that take effect all at once, or not at all. Senders add batches to parts of a load, side by side; a
commit names the parts that count. Until then nobody sees anything of it. Only journal stores take loads."""
_STREAMS = """\
Who reads a queue as a stream holds one batch at a time, under a number, until it says that the batch's outcome is
safe. Until then the same messages are under that number, whatever crashes; and after that they can be read until
the next batch is settled. Spark's `readStream` works so. Only journal stores have streams."""
TAGS = {
    "MQ-Core": "The six endpoints that `curl` needs: a queue is a path, a message is a body.",
    "Queues": "Queues as JSON.",
    "Messages": _BATCHES,
    "Loads": _LOADS,
    "Streams": _STREAMS,
    "Monitoring": "How the server is.",
    "About": "The server describes itself.",
}
OPERATIONS = [
    Operation(
        call="GET /",
        id="start",
        tag="About",
        summary="Where to begin",
        answers={
            "303": {"description": "At the page for people.", "headers": {"Location": header("`/-/docs`.")}},
        },
    ),
    Operation(
        call="GET /-/docs",
        id="docs",
        tag="About",
        summary="The page for people",
        description="Each error is explained at `/-/docs#NAME`.",
        answers={
            "200": {
                "description": "HTML.",
                "headers": {
                    "Content-Security-Policy": header("Nothing but the page's own style."),
                    "X-Content-Type-Options": header("`nosniff`."),
                },
                "content": {"text/html": {"schema": {"type": "string"}}},
            }
        },
    ),
    Operation(
        call="GET /-/openapi.json",
        id="openapi",
        tag="About",
        summary="The document for programs",
        answers={
            "200": answer("OpenAPI 3.1.", {"type": "object", "required": ["openapi"]}, {"openapi": "3.1.0"}),
        },
    ),
]
