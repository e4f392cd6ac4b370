"""SQS shares its port with the server's own routes, and its errors are Amazon's whatever a client sends."""

import json
import socket
import time
from binascii import crc32
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.http.server.sqs.actions import ACTIONS, QUEUE_ATTRIBUTES
from penstock.http.server.sqs.errors import FAULTS
from penstock.http.server.sqs.shapes import Listing, Shape, Structure, Table, Whole
from tests.http.serving import until
from tests.http.sqs.conftest import FORM, Service


def test_the_servers_own_routes_are_as_ever(service: Service) -> None:
    assert service.ask("GET", "/").status == 303
    assert service.ask("HEAD", "/").status == 303
    posted = service.ask("POST", "/", b"{}", Content_Type="application/json")
    assert (posted.status, posted.headers["allow"], posted.json["error"]) == (405, "GET, HEAD", "MethodNotAllowed")
    queue = service.store.create("000000000000")  # the account's number may be a queue's name
    assert service.ask("POST", "/000000000000/messages", b"m").status == 201
    assert [message.payload for message in queue.claim()] == [b"m"]
    assert service.ask("GET", "/-/healthz").status == 200


def test_a_queues_url_takes_requests_of_the_query_protocol(service: Service) -> None:
    path = urlsplit(service.queue()).path
    sent = service.form("SendMessage", path + "/", MessageBody='a <b> & "c" é')
    assert sent.status == 200
    received = service.ask("GET", f"{path}?Action=ReceiveMessage&AttributeName.1=All")
    message = Xml.fromstring(received.body)[0][0]
    told = {each.tag.rpartition("}")[2]: each.text for each in message}
    assert told["Body"] == 'a <b> & "c" é'
    assert str(told["MessageId"]) in sent.body.decode()


def test_a_queues_name_is_as_good_as_its_url(service: Service) -> None:
    name = service.queue().rpartition("/")[2]
    service.done("SendMessage", QueueUrl=name, MessageBody="m")
    assert [message["Body"] for message in service.receive(name)] == ["m"]


def test_a_name_with_any_character_has_a_url(service: Service) -> None:
    service.store.create("a/b?c%d.e").put("m")
    url = service.done("GetQueueUrl", QueueName="a/b?c%d.e")["QueueUrl"]
    [message] = service.receive(url)
    assert service.form("DeleteMessage", urlsplit(url).path, ReceiptHandle=message["ReceiptHandle"]).status == 200
    assert not any(service.store.queue("a/b?c%d.e").counts().values())


def test_urls_name_the_host_under_which_the_client_found_the_server(service: Service) -> None:
    url = service.queue()
    name = url.rpartition("/")[2]
    asked = json.dumps({"QueueName": name}).encode()
    assert (
        service.json("GetQueueUrl", asked, Host="localhost:81").json["QueueUrl"].startswith("http://localhost:81/")
    )
    behind_tls = service.json("GetQueueUrl", asked, Host="localhost", X_Forwarded_Proto="https")
    assert behind_tls.json["QueueUrl"] == f"https://localhost/000000000000/{name}"


def test_arns_are_of_the_region_for_which_a_client_signs(service: Service) -> None:
    asked = json.dumps({"QueueUrl": service.queue(), "AttributeNames": ["QueueArn"]}).encode()
    scope = "AWS4-HMAC-SHA256 Credential=any/20260101/eu-central-1/sqs/aws4_request"
    arns = [
        service.json("GetQueueAttributes", asked, **headers).json["Attributes"]["QueueArn"].split(":")[3]
        for headers in ({}, {"Authorization": scope})
    ]
    assert arns == ["us-east-1", "eu-central-1"]


def test_web_pages_cannot_use_it(service: Service) -> None:
    for headers in (
        {"Origin": "http://elsewhere.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Host": "rebound.example"},
    ):
        told = service.ask("POST", "/", b"Action=ListQueues", Content_Type=FORM, **headers)
        assert (told.status, told.error) == (403, "AccessDenied")
    image = service.ask("GET", "/?Action=PurgeQueue&QueueUrl=/0/default", User_Agent="Mozilla/5.0")
    assert (image.status, image.error) == (403, "AccessDenied")


LIST = {"X-Amz-Target": "AmazonSQS.ListQueues"}
DELETE = {"X-Amz-Target": "AmazonSQS.DeleteQueue"}
HOSTILE: list[tuple[str, bytes, dict[str, str], str]] = [
    ("no json", b"{", LIST, "MalformedInput"),
    ("no object", b"[]", LIST, "MalformedInput"),
    ("no utf-8", b'{"QueueNamePrefix": "\xff"}', LIST, "MalformedInput"),
    ("deep", b"[" * 100_000, LIST, "MalformedInput"),
    ("long number", b'{"MaxResults": ' + b"9" * 5_000 + b"}", LIST, "MalformedInput"),
    ("wrong type", b'{"MaxResults": "5"}', LIST, "MalformedInput"),
    ("out of range", b'{"MaxResults": 1001}', LIST, "InvalidParameterValue"),
    ("no token of ours", b'{"NextToken": "\xc3\xa9"}', LIST, "InvalidParameterValue"),
    ("no action", b"{}", {"X-Amz-Target": "AmazonSQS.Explode"}, "InvalidAction"),
    ("other service", b"{}", {"X-Amz-Target": "DynamoDB_20120810.ListTables"}, "InvalidAction"),
    ("surrogate", b'{"QueueUrl": "/0/\\ud800"}', DELETE, "InvalidAddress"),
    ("no name", b'{"QueueUrl": "/0/"}', DELETE, "InvalidAddress"),
    ("form without action", b"a=b", {}, "MissingParameter"),
    ("form with unknown action", b"Action=Explode", {}, "InvalidAction"),
    ("form that is no text", b"Action=\xff", {}, "MalformedInput"),
    ("form that is no utf-8", b"Action=%ff", {}, "MalformedInput"),
    ("many fields", b"Action=ListQueues&" + b"&".join(b"a%d=" % n for n in range(3_000)), {}, "MalformedInput"),
    ("deep form", b"Action=ListQueues&" + b"a." * 50_000 + b"=1", {}, ""),
    ("clash", b"Action=ListQueues&MaxResults.1=1&MaxResults=1&MaxResults.1.1=1", {}, ""),
    ("markup", b"Action=%3Cb%3E%26", {}, "InvalidAction"),
]


@pytest.mark.parametrize(
    ("body", "headers", "error"), [each[1:] for each in HOSTILE], ids=[each[0] for each in HOSTILE]
)
def test_hostile_requests_get_errors_of_their_protocol(
    service: Service, body: bytes, headers: dict[str, Any], error: str
) -> None:
    told = service.ask("POST", "/", body, **{"Content_Type": FORM, **headers})
    assert told.status == {"": 200, "InvalidAddress": 404}.get(error, 400)
    assert not error or told.error == error
    assert service.done("ListQueues")["QueueUrls"]


def test_a_body_beyond_every_limit_is_refused_before_it_is_read(service: Service) -> None:
    for headers in ({"X-Amz-Target": "AmazonSQS.SendMessage"}, {}):
        told = service.ask("POST", "/", b"", Content_Type=FORM, Content_Length=str(9 << 20), **headers)
        assert (told.status, told.error) == (400, "InvalidParameterValue")


def test_an_answers_request_id_cannot_carry_markup(service: Service) -> None:
    told = service.ask("POST", "/", b"Action=ListQueues", Content_Type=FORM, X_Request_Id="<b>&")
    assert Xml.fromstring(told.body).findtext(".//{*}RequestId") == "<b>&"


def test_a_client_that_goes_away_takes_no_message_with_it(service: Service) -> None:
    url = service.queue()
    queue = service.behind(url)
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    address, begun = urlsplit(service.url), time.monotonic()
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        until(lambda: [each.in_line for each in service.store.figures() if each.queue == queue.name] == [1])
    until(lambda: [each.in_line for each in service.store.figures() if each.queue == queue.name] == [0])
    assert time.monotonic() - begun < 20  # its wait did not just end
    queue.put("m")
    assert [message["Body"] for message in service.receive(url)] == ["m"]


HANDLE = f"{crc32(b'default'):08x}-1-1.{'0' * 16}"
VALUES = {
    "QueueUrl": st.sampled_from(["/0/default", "/0/any.fifo", "/0/none", "", "/0/%ff", "default"]),
    "QueueName": st.sampled_from(["any", "any.fifo", "default", "a b", ""]),
    "ReceiptHandle": st.sampled_from(["", "x", HANDLE, HANDLE.replace("-1-", "-\u0663-")]),
    "SourceArn": st.sampled_from(["arn:aws:sqs:a:0:default", "arn:aws:sqs:a:0:none", "x"]),
    "Id": st.sampled_from(["a", "b", "", "é"]),
    "MessageBody": st.text(max_size=3),
    "DataType": st.sampled_from(["String", "Number", "Binary", "Binary.x", "x"]),
    "BinaryValue": st.sampled_from(["AAE=", "!", ""]),
    "WaitTimeSeconds": st.just(0),
}
STATUSES = {fault.code: fault.status for fault in FAULTS.values()}
TEXTS = st.text(max_size=3) | st.sampled_from(["All", ".*", "a.*", "true", "1", "{}", "5.0", *QUEUE_ATTRIBUTES])


def drawn(draw: st.DrawFn, name: str, shape: Shape) -> Any:
    """A value of a member: often one that is right."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from([None, 1, "x", [], {}, True, 1e400, -1, [None], {"": None}, "\ud800"]))
    if name in VALUES:
        return draw(VALUES[name])
    if isinstance(shape, Structure):
        chosen = [each for each in shape.members if each.required or draw(st.booleans())]
        return {each.name: drawn(draw, each.name, each.shape) for each in chosen}
    if isinstance(shape, Listing):
        return [drawn(draw, "", shape.item) for _ in range(draw(st.integers(0, 3)))]
    if isinstance(shape, Table):
        return {draw(TEXTS): drawn(draw, "", shape.item) for _ in range(draw(st.integers(0, 3)))}
    return draw(st.integers(-1, 43_201)) if isinstance(shape, Whole) else draw(TEXTS)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    action = draw(st.sampled_from(sorted(ACTIONS)))
    return action, drawn(draw, "", ACTIONS[action].takes)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests())
def test_whatever_is_asked_the_answer_is_amazons(service: Service, asked: tuple[str, Any]) -> None:
    action, members = asked
    told = service.json(action, json.dumps(members).encode())
    if told.status == 200:
        assert isinstance(told.json, dict)
    else:
        assert (told.status, told.error) == (STATUSES[told.error], told.error)
        assert told.status < 500
