"""The names of the query protocol that boto3 is given here are those of a botocore that spoke it."""

import gzip
import json
from typing import Any

import pytest

from tests.clients.kit import model, python_packages
from tests.clients.query_model import as_query
from tests.clients.test_every_client import OLD


@pytest.mark.long  # installs that botocore
def test_the_names_are_those_of_the_older_botocore() -> None:
    (path,) = (python_packages(*OLD) / "botocore/data/sqs").glob("*/service-2.json*")
    data = path.read_bytes()
    older = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    ours = as_query(model())
    assert ours["metadata"]["xmlNamespace"] == older["metadata"]["xmlNamespace"]
    for name, operation in older["operations"].items():
        wrapper = operation.get("output", {}).get("resultWrapper")
        assert ours["operations"][name].get("output", {}).get("resultWrapper") == wrapper
    for name in older["shapes"]:
        if name in ours["shapes"]:
            assert names(name, ours["shapes"]) == names(name, older["shapes"])


def names(name: str, shapes: dict[str, Any]) -> dict[str, Any]:
    """What the query protocol calls the parts of a shape: a part's own name, or that of its shape."""
    shape = shapes[name]
    parts = {part: shape[part] for part in ("member", "key", "value") if part in shape}
    parts |= {part: each for part, each in shape.get("members", {}).items() if part not in _NEWER}
    called = {
        part: each.get("locationName", shapes[each["shape"]].get("locationName")) for part, each in parts.items()
    }
    return {**called, "error": shape.get("error", {}).get("code", name)}


_NEWER = {"message", "MessageSystemAttributeNames"}
