"""Requests to servers, by area. Each function is one conversation with the server of a new store."""

from collections.abc import Callable
from typing import NamedTuple

from tests.golden.talk import FRAME, WANTS_FRAME, Talk, frame

Q = "/-/api/queues"
JOBS = "/-/api/queues/jobs"


def queues(talk: Talk) -> None:
    talk.about("the queue that is always there")
    talk("GET", Q)
    talk("HEAD", Q)
    talk("GET", f"{Q}/default")
    talk.about("create")
    talk("POST", Q, '{"name": "jobs"}')
    talk("POST", Q, '{"name": "a b"}')
    talk(
        "POST", Q,
        '{"name": "all/of-it", "settings": {"max_size": 10, "max_attempts": 3, "keep_done": 60, "max_payload": 99,'
        ' "priorities": [0, 9], "max_lease": 600, "retention": 3600.5, "description": "caf\\u00e9",'
        ' "filter": "kind = \'order\' AND size > 3", "start": "now"}}',
    )  # fmt: skip
    talk("POST", Q, '{"name": "jobs"}')
    talk("POST", Q, '{"name": ""}')
    talk("POST", Q, "{}")
    talk("POST", Q, '{"name": "a", "colour": "red"}')
    talk("POST", Q, '{"name": "a", "settings": {"colour": "red", "size": 1}}')
    talk("POST", Q, '{"name": "a", "settings": []}')
    talk("POST", Q, '{"name": "a", "settings": {"max_size": -1}}')
    talk("POST", Q, '{"name": "a", "settings": {"max_attempts": "many"}}')
    talk("POST", Q, '{"name": "a", "settings": {"filter": "kind ="}}')
    talk("POST", Q, '{"name": "a", "settings": {"filter": ""}}')
    talk("POST", Q, '{"name": "a", "settings": {"priorities": [9, 0]}}')
    talk("POST", Q, '{"name": "a", "settings": {"start": "tomorrow"}}')
    talk("POST", Q, '{"name": "caf\\u00e9"}')
    talk("POST", Q, f'{{"name": "{"n" * 256}"}}')
    talk("POST", Q, '{"name": "a"')
    talk("POST", Q, "[]")
    talk("POST", Q, b'{"name": "a"}')
    talk("POST", f"{Q}?colour=red", '{"name": "a"}')
    talk.about("show")
    talk("GET", JOBS)
    talk("HEAD", JOBS)
    talk("GET", f"{Q}/all%2Fof-it")
    talk("GET", f"{Q}/none")
    talk("GET", f"{Q}/caf%C3%A9")
    talk("GET", f"{JOBS}?colour=red")
    talk("GET", f"{Q}/")
    talk("PUT", JOBS)
    talk("PATCH", Q)
    talk.about("update")
    talk("PATCH", JOBS, '{"settings": {"max_attempts": 9, "keep_done": null, "priorities": [0, 9]}}')
    talk("PATCH", JOBS, '{"settings": {}}')
    talk("PATCH", JOBS, "{}")
    talk("PATCH", JOBS, '{"settings": {"colour": "red"}}')
    talk("PATCH", JOBS, '{"settings": {"max_size": -1}}')
    talk("PATCH", JOBS, '{"settings": {"filter": "kind ="}}')
    talk("PATCH", JOBS, '{"settings": {"start": "beginning"}}')
    talk("PATCH", JOBS, '{"max_size": 1}')
    talk("PATCH", f"{Q}/none", '{"settings": {"max_size": 1}}')
    talk.about("list, with counts")
    talk("POST", "/jobs/messages", b"a")
    talk("GET", Q)
    talk("GET", f"{Q}?colour=red")
    talk.about("purge")
    talk("POST", f"{JOBS}/purge", "{}")
    talk("POST", f"{JOBS}/purge")
    talk("POST", f"{JOBS}/purge", '{"all": true}')
    talk("POST", f"{Q}/none/purge", "{}")
    talk("GET", f"{JOBS}/purge")
    talk.about("delete")
    talk("DELETE", JOBS)
    talk("DELETE", JOBS)
    talk("DELETE", f"{Q}/default")
    talk("DELETE", f"{Q}/all%2Fof-it?colour=red")
    talk("DELETE", f"{Q}/all%2Fof-it")


def messages(talk: Talk) -> None:
    talk("POST", Q, '{"name": "jobs", "settings": {"max_attempts": 2, "keep_done": 3600, "max_lease": 100}}')
    talk.about("put")
    talk("POST", f"{JOBS}/put", '{"messages": [{"payload": "one"}]}')
    talk("POST", f"{JOBS}/put", '{"messages": []}')
    two = talk(
        "POST", f"{JOBS}/put",
        '{"messages": [{"payload": "caf\\u00e9", "priority": 3, "headers": {"kind": "a", "n": "1"}, "created_at":'
        ' 5}, {"payload_base64": "AP8KDQ==", "delay": 60, "retention": 120.5, "key": "k"}]}',
    ).json["ids"]  # fmt: skip
    talk("POST", f"{JOBS}/put", '{"messages": [{"payload": "another", "key": "k"}]}')
    talk("POST", f"{JOBS}/put", frame({}, b"plain", b"frame"), FRAME)
    columns = {"priority": [1, 2], "headers": {"kind": "b"}, "delay": [0, 5.5], "key": [None, "f"]}
    talk("POST", f"{JOBS}/put", frame(columns, b"", b"\x00\xff"), FRAME)
    talk.about("put, refused")
    for body in (
        '{"messages": [{"payload": "a", "colour": 1}]}', '{"messages": [{"payload": 1}]}', '{"messages": [{}]}',
        '{"messages": [{"payload": "a", "payload_base64": "YQ=="}]}', '{"messages": [{"payload_base64": "#"}]}',
        '{"messages": [{"payload": "a"}, {"payload": "b", "priority": 1.5}]}',
        '{"messages": [{"payload": "a", "priority": 9223372036854775808}]}',
        '{"messages": [{"payload": "a", "delay": -1}]}', '{"messages": [{"payload": "a", "headers": {"a": 1}}]}',
        '{"messages": [{"payload": "a", "key": ""}]}', '{"messages": {}}', '{"message": []}', '{"messages": [',
        '[]', '{"messages": [1]}',
    ):  # fmt: skip
        talk("POST", f"{JOBS}/put", body)
    for content in (
        b"", b"\x00\x00\x00\x09{}", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x02{x",
        frame({}, b"a") + b"b", frame({"colour": "red"}, b"a"), frame({"delay": [1, 2]}, b"a"),
        frame({"priority": ["high"]}, b"a"), frame({"visible_at": 5}, b"a"),
    ):  # fmt: skip
        talk("POST", f"{JOBS}/put", content, FRAME)
    talk("POST", f"{JOBS}/put", "a", "Content-Type: text/plain")
    talk("POST", f"{JOBS}/put?colour=red", '{"messages": []}')
    talk("POST", f"{Q}/none/put", '{"messages": [{"payload": "a"}]}')
    talk("GET", f"{JOBS}/put")
    talk("POST", Q, '{"name": "small", "settings": {"max_size": 2, "max_payload": 3, "priorities": [0, 5]}}')
    talk("POST", f"{Q}/small/put", '{"messages": [{"payload": "four"}]}')
    talk("POST", f"{Q}/small/put", '{"messages": [{"payload": "a", "priority": 6}]}')
    talk("POST", f"{Q}/small/put", '{"messages": [{"payload": "a"}, {"payload": "b"}, {"payload": "c"}]}')
    talk("POST", f"{Q}/small/put", '{"messages": [{"payload": "a"}, {"payload": "b"}]}')
    talk("POST", f"{Q}/small/put", '{"messages": [{"payload": "c"}]}')
    talk.about("look")
    talk("GET", f"{JOBS}/peek")
    talk("GET", f"{JOBS}/peek?n=2&skip=1")
    talk("GET", f"{JOBS}/peek?n=100", None, WANTS_FRAME)
    talk("HEAD", f"{JOBS}/peek")
    for query in ("n=0", "n=x", "n=1.5", "skip=-1", "colour=red", "n=1&n=2", "n=%FF"):
        talk("GET", f"{JOBS}/peek?{query}")
    talk("GET", f"{Q}/none/peek")
    talk("GET", f"{JOBS}/messages")
    talk("GET", f"{JOBS}/messages?limit=2&after={two[0]}", None, WANTS_FRAME)
    talk("GET", f"{JOBS}/messages?until={two[0]}&fields=id,state,priority")
    talk("GET", f"{JOBS}/messages?state=delayed&fields=id,visible_at,expires_at,headers", None, WANTS_FRAME)
    talk("GET", f"{JOBS}/messages?state=done")
    for query in ("state=odd", "limit=0", "fields=id,colour", "colour=red"):
        talk("GET", f"{JOBS}/messages?{query}")
    talk("GET", f"{Q}/none/messages")
    talk("GET", f"{JOBS}/parts?n=3")
    for query in ("n=0", "n=10001", "n=x"):
        talk("GET", f"{JOBS}/parts?{query}")
    talk.about("claim")
    one = talk("POST", f"{JOBS}/claim", '{"consumer": "me", "lease": 20}').json["messages"][0]["receipt"]
    talk("POST", f"{JOBS}/claim", '{"n": 2, "consumer": "caf\\u00e9", "lease": 1000}', WANTS_FRAME)
    talk("POST", f"{JOBS}/claim", '{"n": 1}')
    for body in (
        '{"n": 0}', '{"n": "x"}', '{"lease": 0}', '{"lease": "x"}', '{"wait": -1}', '{"consumer": ""}',
        '{"consumer": 5}', '{"colour": "red"}', '{"n": NaN}', '{',
    ):  # fmt: skip
        talk("POST", f"{JOBS}/claim", body)
    talk("POST", f"{Q}/none/claim", "{}")
    talk("POST", f"{JOBS}/claim", "{}", "Content-Type: text/plain")
    talk.about("extend")
    talk("POST", f"{JOBS}/extend", f'{{"receipts": ["{one}", "77.0000000000000000", "odd"], "lease": 40}}')
    talk("POST", f"{JOBS}/extend", f'{{"receipts": ["{one}"]}}')
    talk("POST", f"{JOBS}/extend", '{"receipts": ["odd"], "lease": 0}')
    talk("POST", f"{JOBS}/extend", '{"receipts": "odd"}')
    talk.about("ack, fail, release")
    talk("POST", f"{JOBS}/put", frame({"priority": 9}, b"f1", b"f2", b"f3", b"f4"), FRAME)
    talk("POST", f"{JOBS}/ack", f'{{"receipts": ["{one}"]}}')
    talk("POST", f"{JOBS}/ack", f'{{"receipts": ["{one}"]}}')
    talk("POST", f"{JOBS}/ack", f'{{"receipts": ["{one[:-16]}{"0" * 16}", "odd"]}}')
    for reason in ('"no"', "null"):
        held = talk("POST", f"{JOBS}/claim", '{"consumer": "me"}').json["messages"][0]["receipt"]
        talk("POST", f"{JOBS}/fail", f'{{"receipts": ["{held}"], "reason": {reason}, "delay": 10}}')
    back = talk("POST", f"{JOBS}/claim", '{"consumer": "me"}').json["messages"][0]["receipt"]
    talk("POST", f"{JOBS}/release", f'{{"receipts": ["{back}"]}}')
    talk("POST", f"{JOBS}/release", f'{{"receipts": ["{back}", "odd"]}}')
    for what in ("ack", "fail", "release", "extend"):
        talk("POST", f"{JOBS}/{what}", "{}")
        talk("POST", f"{JOBS}/{what}", '{"receipts": [5]}')
        talk("POST", f"{JOBS}/{what}", '{"receipts": [], "colour": "red"}')
        talk("POST", f"{Q}/none/{what}", '{"receipts": ["1.0000000000000000"]}')
    talk("POST", f"{JOBS}/fail", '{"receipts": [], "delay": "x"}')
    talk("POST", f"{JOBS}/fail", '{"receipts": [], "reason": 5}')
    talk.about("pop")
    talk("POST", f"{JOBS}/pop", '{"consumer": "me"}')
    talk("POST", f"{Q}/default/pop", '{"consumer": "me"}')
    talk("POST", f"{Q}/default/pop", "{}", WANTS_FRAME)
    talk("POST", f"{JOBS}/pop", '{"wait": "x"}')
    talk("POST", f"{JOBS}/pop", '{"n": 1}')
    talk("POST", f"{Q}/none/pop", "{}")
    talk.about("leases end, delays and retentions as well")
    talk("GET", JOBS)
    talk.advance(130)
    talk("GET", JOBS)
    talk("POST", f"{JOBS}/claim", '{"n": 100, "consumer": "me", "lease": 1}', WANTS_FRAME)
    talk.advance(2)
    talk("GET", f"{JOBS}/messages?state=failed")
    talk.about("attempts")
    talk("GET", f"{JOBS}/attempts")
    talk("GET", f"{JOBS}/attempts?after={two[0]}&until={two[1]}")
    talk("GET", f"{JOBS}/attempts?colour=red")
    talk("GET", f"{Q}/none/attempts")
    talk("GET", f"{JOBS}/messages/{two[0]}/attempts")
    talk("HEAD", f"{JOBS}/messages/{two[0]}/attempts")
    talk("GET", f"{JOBS}/messages/{two[0]}/attempts?colour=red")
    talk("GET", f"{JOBS}/messages/odd/attempts")
    talk("GET", f"{Q}/none/messages/1/attempts")
    talk.about("redrive, revoke, remove")
    talk("POST", f"{JOBS}/redrive", f'{{"ids": ["{two[0]}", "odd"]}}')
    talk("POST", f"{JOBS}/redrive", "{}")
    talk("POST", f"{JOBS}/redrive", '{"ids": "odd"}')
    talk("POST", f"{Q}/none/redrive", "{}")
    held = talk("POST", f"{JOBS}/claim", '{"consumer": "me"}').json["messages"][0]["id"]
    talk("POST", f"{JOBS}/revoke", f'{{"ids": ["{held}", "{held}", "odd"]}}')
    talk("POST", f"{JOBS}/revoke", f'{{"ids": ["{held}"]}}')
    talk("POST", f"{JOBS}/revoke", "{}")
    talk("POST", f"{Q}/none/revoke", '{"ids": ["1"]}')
    talk("POST", f"{JOBS}/remove", f'{{"ids": ["{two[0]}", "{two[0]}", "odd"]}}')
    talk("POST", f"{JOBS}/remove", f'{{"ids": ["{two[0]}"]}}')
    talk("POST", f"{JOBS}/remove", "{}")
    talk("POST", f"{JOBS}/remove", '{"ids": [5]}')
    talk("POST", f"{Q}/none/remove", '{"ids": ["1"]}')
    talk("POST", f"{JOBS}/purge", "{}")
    talk("GET", f"{JOBS}/messages?fields=id,state,settled_at,reason")


def publishing(talk: Talk) -> None:
    talk("POST", Q, '{"name": "orders", "settings": {"filter": "kind = \'order\'"}}')
    talk("POST", Q, '{"name": "large", "settings": {"filter": "size > 2", "max_size": 2}}')
    talk.about("publish")
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "a", "headers": {"kind": "order"}}]}')
    talk("POST", "/-/api/publish", frame({"headers": {"kind": "order"}, "priority": 3}, b"three"), FRAME)
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "a"}]}')
    talk("GET", f"{Q}/orders/messages?fields=id,payload,headers,priority")
    talk("GET", f"{Q}/large/messages?fields=id,payload,headers,priority")
    talk.about("publish, refused")
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "four"}]}')
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "four", "headers": {"kind": "order"}}]}')
    talk("POST", "/-/api/publish", '{"messages": []}')
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "a"}, {"payload": "b"}]}')
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "a", "key": "k"}]}')
    talk("POST", "/-/api/publish", '{"messages": [{"payload": "a", "headers": {"penstock.publish": "1"}}]}')
    talk("POST", "/-/api/publish", b"\x00", FRAME)
    talk("GET", "/-/api/publish")
    talk("GET", Q)


def mqcore(talk: Talk) -> None:
    talk.about("queues")
    talk("PUT", "/jobs")
    talk("PUT", "/jobs", b"a body is ignored")
    talk("PUT", "/jobs?max_size=2")
    talk(
        "PUT",
        "/some?max_size=2&max_attempts=3&keep_done=none&priorities=0,5&description=caf%C3%A9&filter=a%20%3D%20'b'"
        "&max_payload=5&max_lease=60&retention=600&start=now",
    )
    talk("PUT", "/some?max_size=2")
    for query in ("max_size=x", "colour=red", "max_size=1&max_size=2", "filter=a", "priorities=1", "start=5"):
        talk("PUT", f"/other?{query}")
    talk("PUT", "/caf%C3%A9")
    talk("GET", "/jobs")
    talk("GET", "/jobs", None, "Accept: application/json")
    talk("GET", "/some", None, "Accept: text/html, */*")
    talk("HEAD", "/jobs")
    talk("HEAD", "/jobs", None, "Accept: */*")
    talk("GET", "/none")
    talk("HEAD", "/none")
    talk("GET", "/jobs?colour=red")
    talk("POST", "/jobs")
    talk.about("messages")
    first = talk("POST", "/jobs/messages", b"hello").headers["x-message-id"]
    told = (
        "X-Message-Priority: -3", "X-Message-Delay: 0", "X-Message-Retention: 600", "X-Message-Key: k",
        "X-Message-Created-At: 5", 'X-Message-Headers: {"kind": "a", "city": "K\u00f6ln"}',
    )  # fmt: skip
    talk("POST", "/jobs/messages", b"\x00\xff", *(each for each in told if "-3" not in each))
    talk("POST", "/jobs/messages", b"again", "X-Message-Key: k")
    talk("POST", "/jobs/messages", b"again", "Idempotency-Key: k")
    talk("POST", "/jobs/messages", b"", "X-Message-Priority: 7", "X-Message-Delay: 5.5")
    for header in (
        "X-Message-Priority: high", "X-Message-Priority: 1.5", "X-Message-Delay: -1", "X-Message-Retention: x",
        "X-Message-Created-At: now", "X-Message-Headers: []", 'X-Message-Headers: {"a": 1}', "X-Message-Key: ",
        "X-Message-Headers: {",
    ):  # fmt: skip
        talk("POST", "/jobs/messages", b"a", header)
    talk("POST", "/jobs/messages?colour=red", b"a")
    talk("POST", "/none/messages", b"a")
    talk("POST", "/some/messages", b"large!")
    talk("POST", "/some/messages", b"a", "X-Message-Priority: 6")
    talk("POST", "/some/messages", b"a")
    talk("POST", "/some/messages", b"b")
    talk("POST", "/some/messages", b"c")
    talk.raw(b"POST /jobs/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777217\r\n\r\n")
    talk("PUT", "/jobs/messages")
    talk("HEAD", "/jobs/messages")
    talk.about("fetch")
    held = talk("GET", "/jobs/messages?lease=10&wait=0&consumer=caf%C3%A9").headers
    other = talk("GET", "/jobs/messages?consumer=me").headers
    talk("GET", "/default/messages")
    talk("GET", "/jobs/messages?consumer=me")
    for query in ("lease=0", "lease=x", "wait=-1", "consumer=", "n=2", "consumer=%FF"):
        talk("GET", f"/jobs/messages?{query}")
    talk("GET", "/none/messages")
    talk.about("delete")
    receipt = held["x-message-receipt"]
    talk("DELETE", f"/jobs/messages/{first}?receipt={other['x-message-receipt']}")
    talk("DELETE", f"/jobs/messages/{held['x-message-id']}?receipt={receipt[:-16]}{'0' * 16}")
    talk("DELETE", f"/jobs/messages/{held['x-message-id']}?receipt={receipt}")
    talk("DELETE", f"/jobs/messages/{held['x-message-id']}?receipt={receipt}")
    talk("DELETE", f"/jobs/messages/{other['x-message-id']}")
    talk("DELETE", f"/jobs/messages/{other['x-message-id']}")
    talk("DELETE", f"/jobs/messages/{other['x-message-id']}?receipt={other['x-message-receipt']}")
    talk("DELETE", "/jobs/messages/odd?colour=red")
    talk("DELETE", "/none/messages/1")
    talk("GET", "/jobs/messages/1")
    talk.advance(10)
    talk("GET", "/jobs/messages?consumer=me")
    talk("DELETE", "/jobs")
    talk("DELETE", "/jobs")
    talk("DELETE", "/default")


def streams(talk: Talk) -> None:
    s = "/-/streams/jobs/s"
    talk("POST", Q, '{"name": "jobs", "settings": {"max_attempts": 2}}')
    talk("POST", f"{JOBS}/put", frame({"priority": [0, 0, 1, 1, 1]}, b"a", b"b", b"c", b"d", b"e"), FRAME)
    talk("GET", "/-/streams")
    talk("HEAD", "/-/streams")
    talk("GET", "/-/streams?colour=red")
    talk.about("begin")
    reader = '"reader": "1-1@0@elsewhere"'
    talk("POST", f"{s}/begin", f"{{{reader}}}")
    talk("POST", f"{s}/begin", '{"reader": "2-2@0@elsewhere"}')
    for body in ("{}", '{"reader": ""}', '{"reader": 5}', '{"reader": "a", "colour": "red"}', "{"):
        talk("POST", f"{s}/begin", body)
    talk("POST", "/-/streams/none/s/begin", f"{{{reader}}}")
    talk("POST", "/-/streams/jobs/caf%C3%A9/begin", f"{{{reader}}}")
    talk("GET", f"{s}/begin")
    talk.about("next")
    talk("POST", f"{s}/next", f'{{{reader}, "start": 0, "rows": 2, "bytes": 1000, "run": "r1"}}')
    talk("POST", f"{s}/next", f'{{{reader}, "start": 0}}')
    for more in ('"start": -1', '"rows": "x"', '"bytes": 0', '"run": ""', '"colour": "red"'):
        talk("POST", f"{s}/next", f"{{{reader}, {more}}}")
    talk("POST", f"{s}/next", '{"start": 0}')
    talk("POST", f"{s}/next", f'{{{reader}, "start": 7}}')
    talk("POST", "/-/streams/jobs/t/next", f'{{{reader}, "start": 0}}')
    talk.about("the messages of a batch")
    talk("GET", f"{s}/1/messages")
    talk("GET", f"{s}/1/messages?after=1&limit=5", None, WANTS_FRAME)
    talk("HEAD", f"{s}/1/messages")
    talk("GET", f"{s}/9/messages")
    talk("GET", f"{s}/x/messages")
    talk("GET", f"{s}/1/messages?limit=0")
    talk("GET", f"{s}/1/messages?colour=red")
    talk("POST", f"{s}/1/read", "{}")
    talk("POST", f"{s}/1/read", '{"pins": 5}')
    talk("POST", f"{s}/9/read", "{}")
    talk.about("fail some, settle")
    talk("POST", f"{s}/1/fail", '{"ids": ["1"], "reason": "odd", "delay": 5}')
    talk("POST", f"{s}/1/fail", '{"ids": ["4"]}')
    for body in ("{}", '{"ids": [5]}', '{"ids": [], "reason": 5}', '{"ids": [], "delay": -1}'):
        talk("POST", f"{s}/1/fail", body)
    talk("POST", f"{s}/1/settle", "{}")
    talk("POST", f"{s}/1/settle", "{}")
    talk("POST", f"{s}/2/settle", "{}")
    talk("POST", f"{s}/1/settle", '{"colour": "red"}')
    talk("GET", JOBS)
    talk("POST", f"{s}/next", f'{{{reader}, "start": 1, "rows": 1}}')
    talk("GET", "/-/streams")
    talk.about("release, delete")
    talk("DELETE", s)
    talk("POST", f"{s}/release", "{}")
    talk("POST", f"{s}/release", '{"colour": "red"}')
    talk("DELETE", f"{s}?colour=red")
    talk("DELETE", s)
    talk("POST", "/-/streams/jobs/t/release", "{}")
    talk("DELETE", "/-/streams/jobs/t")
    talk("GET", s)
    talk("POST", "/-/streams/jobs/s/1/other", "{}")
    talk("GET", "/-/streams")


def followers(talk: Talk) -> None:
    f = "/-/followers/jobs/f"
    talk("POST", Q, '{"name": "jobs"}')
    talk(
        "POST",
        f"{JOBS}/put",
        frame({"priority": [2, 1], "headers": {"a": "b"}, "delay": [0, 9]}, b"a", b"b"),
        FRAME,
    )
    talk.advance(5)
    talk("POST", f"{JOBS}/put", frame({}, b"c", b"d"), FRAME)
    talk.about("start")
    for query in ("", "?at=earliest", "?at=latest", "?at=1700000001000", "?at=yesterday", "?colour=red"):
        talk("GET", f"{f}/start{query}")
    talk("HEAD", f"{f}/start")
    talk("GET", "/-/followers/none/f/start")
    talk("GET", "/-/followers/jobs/caf%C3%A9/start")
    talk.about("ahead")
    for query in (
        "", "?after=1&rows=2", "?after=1&bytes=1", "?until=3", "?rows=0", "?after=9&gaps=9",
        "?after=-1", "?rows=x", "?bytes=0", "?colour=red",
    ):  # fmt: skip
        talk("GET", f"{f}/ahead{query}")
    talk("GET", "/-/followers/none/f/ahead")
    talk.about("messages, as they entered")
    talk("POST", f"{JOBS}/claim", '{"n": 1, "consumer": "me", "lease": 60}')
    talk("GET", f"{f}/messages?until=4")
    talk("GET", f"{f}/messages?after=1&until=4&limit=2", None, WANTS_FRAME)
    for query in ("", "?limit=0", "?after=x", "?colour=red"):
        talk("GET", f"{f}/messages{query}")
    talk.about("follow under a name, and leave")
    talk("POST", "/-/streams/jobs/f/follow", '{"reader": "1-1@0@elsewhere", "after": 2}')
    talk("POST", "/-/streams/jobs/f/follow", '{"reader": "1-1@0@elsewhere", "after": -1}')
    talk("POST", "/-/streams/jobs/f/follow", '{"after": 1}')
    talk("GET", "/-/streams")
    talk("DELETE", f)
    talk("DELETE", f"{f}?colour=red")
    talk("DELETE", "/-/followers/none/f")
    talk("GET", f)


def loads(talk: Talk) -> None:
    talk("POST", Q, '{"name": "jobs"}')
    talk("POST", Q, '{"name": "strict", "settings": {"max_payload": 3, "max_size": 2, "priorities": [0, 5]}}')
    talk.about("begin")
    load = talk("POST", "/-/loads", "{}").json["load"]
    making = talk("POST", "/-/loads", '{"queues": {"new": {"max_size": 5}}}').json["load"]
    for body in ('{"queues": []}', '{"queues": {"a": {"colour": "red"}}}', '{"colour": "red"}', "{"):
        talk("POST", "/-/loads", body)
    talk("GET", "/-/loads")
    talk.about("add")
    put = f"/-/loads/{load}"
    talk("PUT", f"{put}/p1/0?queue=jobs", frame({"priority": [2, 1], "headers": {"a": "b"}}, b"a", b"b"), FRAME)
    talk("PUT", f"{put}/p1/0?queue=jobs", frame({"priority": [2, 1], "headers": {"a": "b"}}, b"a", b"b"), FRAME)
    talk("PUT", f"{put}/p1/1?queue=jobs", '{"messages": [{"payload": "c", "delay": 5, "retention": 60}]}')
    talk(
        "PUT",
        f"{put}/p2/0",
        frame({"visible_at": 1_700_000_009_000, "expires_at": [1_700_000_099_000]}, b"d"),
        FRAME,
    )
    talk("PUT", f"{put}/p1/5?queue=jobs", frame({}, b"e"), FRAME)
    talk("PUT", f"{put}/p1/1?queue=jobs", frame({}, b"other"), FRAME)
    talk("PUT", f"{put}/P!/0?queue=jobs", frame({}, b"e"), FRAME)
    talk("PUT", f"{put}/p3/x?queue=jobs", frame({}, b"e"), FRAME)
    talk("PUT", f"{put}/p3/0?queue=none", frame({}, b"e"), FRAME)
    talk("PUT", f"{put}/p3/0?queue=strict", frame({}, b"four"), FRAME)
    talk("PUT", f"{put}/p3/0?queue=strict", frame({"priority": 6}, b"e"), FRAME)
    talk("PUT", f"{put}/p3/0?queue=jobs", frame({"visible_at": 1, "delay": 1}, b"e"), FRAME)
    talk("PUT", f"{put}/p3/0?queue=jobs", b"\x00", FRAME)
    talk("PUT", f"{put}/p3/0?queue=jobs", "{")
    talk("PUT", f"{put}/p3/0?queue=jobs", b"a", "Content-Type: text/plain")
    talk("PUT", f"{put}/p3/0?colour=red", frame({}, b"e"), FRAME)
    talk("PUT", "/-/loads/none/p1/0?queue=jobs", frame({}, b"e"), FRAME)
    talk.about("commit")
    for body in ("{}", '{"parts": [{"part": "p"}]}', '{"parts": [{"part": "p1", "batches": 9}]}', '{"parts": [5]}',
                 '{"parts": [], "colour": "red"}', '{"parts": [], "run": 5}', '{"parts": [], "sink": {"id": "s"}}',
                 '{"parts": [], "sink": {"id": "s", "query": "q", "batch": -1}}'):  # fmt: skip
        talk("POST", f"{put}/commit", body)
    parts = '"parts": [{"part": "p1", "batches": 2}, {"part": "p2", "batches": 1}]'
    talk("POST", f"{put}/commit", f'{{{parts}, "run": "r1"}}')
    talk("POST", f"{put}/commit", f'{{{parts}, "run": "r1"}}')
    talk("POST", "/-/loads/none/commit", f"{{{parts}}}")
    talk("GET", f"{put}/commit")
    talk("GET", f"{JOBS}/messages")
    talk("GET", f"{Q}/default/messages?fields=id,payload,visible_at,expires_at")
    talk.about("runs")
    talk("GET", "/-/runs/r1")
    talk("HEAD", "/-/runs/r1")
    talk("GET", "/-/runs/none")
    talk("GET", "/-/runs/r1?colour=red")
    again = talk("POST", "/-/loads", "{}").json["load"]
    talk("PUT", f"/-/loads/{again}/p1/0?queue=jobs", frame({}, b"twice"), FRAME)
    talk("POST", f"/-/loads/{again}/commit", '{"parts": [{"part": "p1", "batches": 1}], "run": "r1"}')
    talk.about("a sink's batches, which land once")
    for batch in (0, 0, 1):
        load = talk("POST", "/-/loads", "{}").json["load"]
        talk("PUT", f"/-/loads/{load}/p1/0?queue=jobs", frame({}, b"batch"), FRAME)
        sink = f'{{"id": "s", "query": "q", "batch": {batch}}}'
        talk("POST", f"/-/loads/{load}/commit", f'{{"parts": [{{"part": "p1", "batches": 1}}], "sink": {sink}}}')
    talk.about("a load that makes a queue, and one that is taken back")
    talk("PUT", f"/-/loads/{making}/p1/0?queue=new", frame({}, b"f"), FRAME)
    talk("POST", f"/-/loads/{making}/commit", '{"parts": [{"part": "p1", "batches": 1}]}')
    talk("GET", f"{Q}/new")
    full = talk("POST", "/-/loads", "{}").json["load"]
    talk("PUT", f"/-/loads/{full}/p1/0?queue=strict", frame({}, b"1", b"2", b"3"), FRAME)
    talk("POST", f"/-/loads/{full}/commit", '{"parts": [{"part": "p1", "batches": 1}]}')
    talk("DELETE", f"/-/loads/{full}?colour=red")
    talk("DELETE", f"/-/loads/{full}")
    talk("DELETE", f"/-/loads/{full}")


def leave_open(talk: Talk) -> None:
    """What a store keeps of streams, followers, loads and sinks that are not done."""
    talk("POST", Q, '{"name": "jobs", "settings": {"max_attempts": 2}}')
    talk("POST", f"{JOBS}/put", frame({"headers": {"a": "b"}}, b"a", b"b", b"c", b"d"), FRAME)
    talk("POST", "/-/streams/jobs/s/begin", '{"reader": "1-1@0@elsewhere"}')
    talk("POST", "/-/streams/jobs/s/next", '{"reader": "1-1@0@elsewhere", "start": 0, "rows": 1}')
    talk("POST", "/-/streams/jobs/s/next", '{"reader": "1-1@0@elsewhere", "start": 1, "rows": 2, "run": "r"}')
    talk("POST", "/-/streams/jobs/s/2/fail", '{"ids": ["2"], "reason": "odd"}')
    talk("GET", "/-/followers/jobs/f/start")
    talk("POST", "/-/streams/jobs/f/follow", '{"reader": "1-1@0@elsewhere", "after": 1}')
    _land(talk, '"run": "r1"')
    _land(talk, '"sink": {"id": "s", "query": "q", "batch": 7}')


def find_open(talk: Talk) -> None:
    """The same as another server finds it."""
    talk("GET", "/-/streams")
    talk("GET", Q)
    talk("GET", "/-/streams/jobs/s/1/messages")
    talk("GET", "/-/streams/jobs/s/2/messages")
    talk("GET", "/-/followers/jobs/f/ahead?rows=100")
    talk("GET", "/-/followers/jobs/f/messages?until=100")
    talk("GET", "/-/runs/r1")
    _land(talk, '"run": "r1"')
    _land(talk, '"sink": {"id": "s", "query": "q", "batch": 7}')
    _land(talk, '"sink": {"id": "s", "query": "q", "batch": 8}')
    talk("POST", "/-/streams/jobs/s/2/settle", "{}")
    talk("GET", f"{JOBS}/messages")


def _land(talk: Talk, more: str) -> None:
    load = talk("POST", "/-/loads", "{}").json["load"]
    talk("PUT", f"/-/loads/{load}/p1/0?queue=jobs", frame({}, b"loaded"), FRAME)
    talk("POST", f"/-/loads/{load}/commit", f'{{"parts": [{{"part": "p1", "batches": 1}}], {more}}}')


def unsupported(talk: Talk) -> None:
    """What only stores with an owner have."""
    talk("GET", "/-/streams")
    talk("POST", "/-/streams/default/s/begin", '{"reader": "1-1@0@elsewhere"}')
    talk("POST", "/-/streams/default/s/release", "{}")
    talk("GET", "/-/followers/default/f/start")
    talk("GET", "/-/followers/default/f/ahead")
    talk("POST", "/-/loads", "{}")
    talk("PUT", "/-/loads/l/p1/0", frame({}, b"a"), FRAME)
    talk("GET", "/-/runs/r")
    talk("POST", Q, '{"name": "jobs", "settings": {"start": "earliest"}}')


def monitoring(talk: Talk) -> None:
    for path in ("/", "/-/healthz", "/-/readyz"):
        talk("GET", path)
        talk("HEAD", path)
        talk("GET", f"{path}?colour=red")
        talk("POST", path)
    talk("PUT", "/jobs?max_attempts=1")
    for payload in (b"a", b"b", b"c"):
        talk("POST", "/jobs/messages", payload)
    held = talk("POST", f"{JOBS}/claim", '{"n": 2, "consumer": "me"}').json["messages"]
    talk("POST", f"{JOBS}/ack", f'{{"receipts": ["{held[0]["receipt"]}"]}}')
    talk("POST", f"{JOBS}/fail", f'{{"receipts": ["{held[1]["receipt"]}"]}}')
    talk.advance(30)
    talk("GET", "/-/metrics")
    talk("HEAD", "/-/metrics")
    talk("GET", "/-/metrics?colour=red")
    for path in ("/-/openapi.json", "/-/docs"):
        talk("GET", f"{path}?colour=red")
        talk("POST", path)
        talk("HEAD", path)


PATHS = [
    "/", "/default", "/default/messages", "/default/messages/1", "/-/healthz", "/-/readyz", "/-/metrics",
    "/-/openapi.json", "/-/docs", Q, "/-/api/publish", "/-/loads", "/-/streams", f"{Q}/default",
    *[f"{Q}/default/{each}" for each in ("put", "claim", "pop", "ack", "fail", "release", "extend", "remove")],
    *[f"{Q}/default/{each}" for each in ("revoke", "redrive", "purge", "peek", "messages")],
    *[f"{Q}/default/{each}" for each in ("attempts", "parts")],
    f"{Q}/default/messages/1/attempts", "/-/loads/l", "/-/loads/l/commit", "/-/loads/l/p/0", "/-/runs/r",
    *[f"/-/streams/default/s{each}" for each in ("", "/begin", "/next", "/follow", "/release")],
    *[f"/-/streams/default/s/1/{each}" for each in ("read", "messages", "fail", "settle")],
    *[f"/-/followers/default/f{each}" for each in ("", "/start", "/ahead", "/messages")],
]  # fmt: skip
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")


def connections(talk: Talk) -> None:
    host = b"Host: localhost\r\n"
    talk.about("which methods each path takes")
    for path in PATHS:
        answer = talk("OPTIONS" if path == f"{Q}/default" else "PATCH", path)
        talk.note(f"# {path}: {answer.headers['allow']}")
    talk.about("paths where nothing is")
    for path in (
        "/a/b",
        "/a/messages/",
        "/a/messages/1/2",
        "/-/nothing",
        "/-/api",
        f"{Q}/a/b",
        "/-/runs/",
        "/-/streams/a",
    ):
        talk("GET", path)
    talk.about("names")
    for name in ("-", "%2D", "..", "%2E%2E", "a%2Fb", "a:b", "~+%25"):
        talk("PUT", f"/{name}")
        talk("POST", f"/{name}/messages", b"a")
    talk("GET", "/-")
    talk("GET", Q)
    talk.about("heads")
    talk.raw(b"GET /default HTTP/1.0\r\n\r\n")
    talk.raw(b"GET /default HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    talk.raw(b"GET /default HTTP/1.1\r\n\r\n")
    talk.raw(b"GET /default HTTP/1.1\r\n" + host + host + b"\r\n")
    talk.raw(b"GET /default HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
    talk.raw(b"GET http://localhost/default HTTP/1.1\r\n" + host + b"\r\n")
    talk.raw(b"GET default HTTP/1.1\r\n" + host + b"\r\n")
    talk.raw(b"OPTIONS * HTTP/1.1\r\n" + host + b"\r\n")
    talk.raw(b"nonsense\r\n\r\n")
    talk.raw(b"GET /default HTTP/1.1\r\n" + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    talk("GET", "/default", None, "X-Request-Id: mine")
    talk("GET", "/none", None, "X-Request-Id: mine")
    talk("GET", "/none", None, "X-Request-Id: not mine")
    talk("GET", "/default", None, f"X-Long: {'x' * 33_000}")
    talk.about("bodies")
    post = b"POST /default/messages HTTP/1.1\r\n" + host
    talk.raw(post + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    talk.raw(post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
    talk.raw(post + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na")
    talk.raw(post + b"Content-Encoding: identity\r\nContent-Length: 1\r\n\r\na")
    talk.raw(post + b"Content-Length: 000000000000000000001\r\n\r\na")
    talk.raw(post + b"Content-Length: x\r\n\r\na")
    talk.raw(post + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", answers=2)
    for path, most in (("/jobs", 1 << 20), (f"{Q}/default/put", 64 << 20), (f"{Q}/default/ack", 8 << 20),
                       (f"{Q}/default/pop", 65_536)):  # fmt: skip
        method = "PUT" if path == "/jobs" else "POST"
        talk.raw(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {most + 1}\r\n\r\n".encode())
    talk.about("two requests at once")
    one = b"GET /default HTTP/1.1\r\n" + host + b"\r\n"
    talk.raw(one + b"DELETE /default HTTP/1.1\r\n" + host + b"\r\n", answers=2)
    talk.about("web pages")
    talk("GET", "/default", None, "Origin: http://localhost")
    talk("GET", "/default", None, "Origin: http://elsewhere")
    talk("GET", "/default", None, "Sec-Fetch-Site: same-origin")
    talk("GET", "/default", None, "Sec-Fetch-Site: cross-site")
    talk("GET", "/default/messages", None, "User-Agent: Mozilla/5.0")
    talk.raw(b"GET /default HTTP/1.1\r\nHost: elsewhere\r\n\r\n")


def access(talk: Talk) -> None:
    secrets = {role: talk.secrets[role] for role in ("read", "write", "consume", "admin")}
    talk.about("nobody, somebody unknown, and somebody who may not")
    talk("GET", "/-/healthz")
    talk("GET", "/default")
    talk.bearer = "pst_unknown"
    talk("GET", "/-/healthz")
    talk("GET", "/default")
    talk("GET", "/-/nothing")
    talk.bearer = None
    talk("GET", "/default", None, "Authorization: Basic YTpi")
    talk.bearer = secrets["read"]
    talk("GET", "/default")
    talk("POST", "/default/messages", b"a")
    talk("PUT", "/jobs")
    talk.bearer = secrets["write"]
    talk("POST", "/default/messages", b"a")
    talk("GET", "/default/messages")
    talk("POST", "/-/loads", '{"queues": {"new": {}}}')
    talk("POST", "/-/loads", "{}")
    talk.bearer = secrets["consume"]
    talk("GET", "/default/messages?consumer=me")
    talk("GET", Q)
    talk("POST", f"{Q}/default/purge", "{}")
    talk.bearer = secrets["admin"]
    talk("GET", "/default")
    talk("PUT", "/jobs", None, "Origin: http://elsewhere")
    talk.about("every role on every path: the status of each method's answer")
    for path in PATHS:
        for role, secret in {"nobody": None, **secrets}.items():
            talk.bearer = secret
            found = (f"{method} {talk.status(method, path)}" for method in METHODS)
            talk.note(f"{path} {role}: {', '.join(each for each in found if not each.endswith('405'))}")


class Area(NamedTuple):
    """A conversation, the stores on which it is held, and the server's options."""

    conversation: Callable[[Talk], None]
    stores: tuple[str, ...] = ("journal",)
    options: tuple[str, ...] = ()


_EVERY = ("journal", "memory", "text", "folder", "slate")
AREAS = {
    "queues": Area(queues, _EVERY),
    "messages": Area(messages, _EVERY),
    "publishing": Area(publishing, ("journal", "memory", "text", "folder")),
    "mqcore": Area(mqcore, _EVERY),
    "streams": Area(streams, ("journal", "slate")),
    "followers": Area(followers, ("journal", "slate")),
    "loads": Area(loads, ("journal", "slate")),
    "unsupported": Area(unsupported, ("memory", "text", "folder")),
    "monitoring": Area(monitoring),
    "connections": Area(connections),
    "access": Area(access, options=("--tokens", "tokens")),
}
