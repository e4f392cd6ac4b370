"""The endpoint of SQS: finds the protocol and the action of a request, and writes the answer.

AWS JSON 1.0: POST /, the action in the header X-Amz-Target, members as JSON.
Query: POST or GET, at / or at a queue's URL; `Action` and members as a form or a query, the answer as XML.

The signature of a request is not checked: a shared secret would have to be kept in readable form for that. With
tokens on, the session token (X-Amz-Security-Token) is the token, and TLS keeps it and the request from others.
"""

import asyncio
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from penstock.contract import roles
from penstock.contract.roles import ANY_ROLE
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.server import access
from penstock.http.server.exchange import Answer, Dialect, Problem, Request, Route
from penstock.http.server.exchange import refusal as plain_refusal
from penstock.http.server.sqs import message_handlers, queue_handlers
from penstock.http.server.sqs.actions import ACTIONS, Action
from penstock.http.server.sqs.calls import ACCOUNT, Call, queue_of
from penstock.http.server.sqs.errors import SqsError, as_sqs, of_problem
from penstock.http.server.sqs.memory import Memory
from penstock.http.server.sqs.shapes import escaped, missing, tree
from penstock.wire import jsons

HANDLERS = {**queue_handlers.HANDLERS, **message_handlers.HANDLERS}
_TARGET = b"x-amz-target"
_PREFIX = b"AmazonSQS."
_FORM = b"application/x-www-form-urlencoded"
_JSON = b"Content-Type: application/x-amz-json-1.0\r\n"
_XML = b"Content-Type: text/xml\r\n"
_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_MOST = 8 << 20  # bytes of a request: a batch of 1 MiB in which every character is escaped
_LARGE = 65_536  # bytes of a form that is read in a thread
_MOST_FIELDS = 2_000  # of a form: ten messages with ten attributes each have 600
_TOKEN = re.compile(rb"(?:^|&)X-Amz-Security-Token=([^&]+)")


class Asked(NamedTuple):
    """An action, and its members as they came."""

    action: Action
    members: dict[str, Any]


# Both protocols


async def handle(backend: Any, request: Request) -> Answer:
    """Carry out an action."""
    if not is_sqs(request):
        raise Problem("MethodNotAllowed", "this takes GET, HEAD", b"Allow: GET, HEAD\r\n")
    if _TARGET in request.headers:
        asked = _json(request)
    elif len(request.body) < _LARGE:
        asked = _query(request)
    else:
        asked = await asyncio.to_thread(_query, request)
    action = asked.action
    request.route = _POLLING if action.polls else _ROUTE
    if request.holder is not None and not roles.allows(request.holder.roles, action.role):
        raise access.forbidden(request.holder, action.role)
    given = action.takes.read("the request", asked.members)
    call = Call(backend, memory_of(request), request, given)
    if "QueueUrl" in given:
        call.queue = queue_of(given["QueueUrl"])
    return _answer(request, action, await HANDLERS[action.name](call))


def memory_of(request: Request) -> Memory:
    """What the server remembers for SQS."""
    memory: Memory = request.service.sqs
    return memory


def is_sqs(request: Request) -> bool:
    """Whether a request is one of SQS: it names an action, or a queue by its URL."""
    headers = request.headers
    return (
        _TARGET in headers
        or bool(request.arguments)
        or b"Action=" in request.head.query
        or headers.get(b"content-type", b"").startswith(_FORM)
    )


def refuse(request: Request, error: BaseException) -> Answer:
    """The answer for an error, in the request's protocol."""
    if isinstance(error, Problem):
        if not is_sqs(request):
            return plain_refusal(error)
        failure = of_problem(error.error, str(error))
        if error.error == "Unauthorized" and not token(request):
            failure = SqsError(
                "MissingAuthenticationTokenException",
                "this server asks for a token: set the session token (AWS_SESSION_TOKEN) to one that `penstock "
                "token create` has printed",
            )
    elif isinstance(error, PenstockError | SqsError):
        failure = as_sqs(error)
    else:
        failure = SqsError("InternalFailure", "the server failed at this request; its log says why")
    fault = failure.fault
    sender = "Sender" if fault.of_sender else "Receiver"
    retry = b"Retry-After: 1\r\n" if fault.status == 503 else b""
    if _TARGET in request.headers:
        line = f"x-amzn-query-error: {fault.code};{sender}\r\nx-amzn-RequestId: {request.id}\r\n".encode()
        body = jsons.dumps({"__type": f"com.amazonaws.sqs#{failure.name}", "message": failure.message})
        return Answer(fault.status, _JSON + line + retry, body)
    body = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{sender}</Type>'
        f"<Code>{fault.code}</Code><Message>{escaped(failure.message)}</Message><Detail/></Error>"
        f"<RequestId>{escaped(request.id)}</RequestId></ErrorResponse>"
    ).encode()
    return Answer(fault.status, _XML + f"x-amzn-RequestId: {request.id}\r\n".encode() + retry, body)


def token(request: Request) -> bytes:
    """The token of a request as a Bearer's: the session token of a header or of a signed URL."""
    given = request.headers.get(b"x-amz-security-token")
    if given is None and (matched := _TOKEN.search(request.head.query)):
        given = unquote(matched[1].decode("latin-1")).encode()
    if given is not None:
        return b"Bearer " + given
    plain = request.headers.get(b"authorization", b"")
    return plain if plain[:7].lower() == b"bearer " else b""


def _action(name: str) -> Action:
    action = ACTIONS.get(name)
    if action is None:
        raise SqsError("UnknownOperationException", f"The action {name[:80]} is not valid for this endpoint.")
    return action


def _answer(request: Request, action: Action, result: dict[str, Any]) -> Answer:
    told = f"x-amzn-RequestId: {request.id}\r\n".encode()
    if _TARGET in request.headers:
        return Answer(200, _JSON + told, jsons.dumps(result))
    content = ""
    if action.gives.members:
        content = "".join(action.gives.as_xml(f"{action.name}Result", result))
    body = (
        f'<?xml version="1.0"?><{action.name}Response xmlns="{_NAMESPACE}">{content}<ResponseMetadata>'
        f"<RequestId>{escaped(request.id)}</RequestId></ResponseMetadata></{action.name}Response>"
    )
    return Answer(200, _XML + told, body.encode())


# JSON


def _json(request: Request) -> Asked:
    target = request.headers[_TARGET]
    if not target.startswith(_PREFIX):
        raise SqsError("UnknownOperationException", "X-Amz-Target is AmazonSQS. and an action.")
    action = _action(target[len(_PREFIX) :].decode("latin-1"))
    try:
        members = jsons.loads_object(request.body)
    except InvalidArgument as error:
        raise SqsError("SerializationException", str(error)) from None
    return Asked(action, members)


# Query


def _query(request: Request) -> Asked:
    parameters: dict[str, str] = {}
    for text in (request.head.query, request.body):
        try:
            parameters |= parse_qsl(
                text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
            )
        except ValueError:
            raise SqsError(
                "SerializationException", "The form cannot be read: percent-encode UTF-8, with few fields."
            ) from None
    if "Action" not in parameters:
        raise missing("Action")
    action = _action(parameters["Action"])
    members = action.takes.of_form(tree(parameters))
    if request.arguments and "QueueUrl" not in members:
        members["QueueUrl"] = f"/{quote(request.arguments[0], safe='')}"
    return Asked(action, members)


class _Dialect(Dialect):
    """How requests of SQS carry tokens, and how they are refused."""

    token = staticmethod(token)
    refuse = staticmethod(refuse)


_ROUTE = Route(handle, ANY_ROLE, _MOST, dialect=_Dialect)
_POLLING = _ROUTE._replace(polls=True)
PATH = ACCOUNT.encode()
ROUTES = {b"POST": _ROUTE, b"GET": _POLLING}  # a GET of a browser that does not say for which page is refused
