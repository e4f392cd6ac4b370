"""What people watch a server with: its metrics, the alert rules, the dashboard, and the document about them."""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.contract.stream_operations import Begin, Follow, Next
from penstock.contract.streams import reader_name
from tests.http.serving import ask, serving

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "watching.md").read_text()
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
PROMTOOL = shutil.which("promtool", path=f"{os.environ['PATH']}:{ROOT / '.venv/tools/usr/bin'}") or ""

Labels = dict[str, dict[str, set[str]]]  # by metric, by label: the values


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """The metrics of a server whose store has all that makes metrics."""
    with penstock.open(tmp_path_factory.mktemp("watched") / "store") as store:
        jobs = store.queue()
        jobs.put_many([b"a", b"b"])
        store.run(Begin("default", "clicks", reader_name()))
        store.run(Next("default", "clicks", reader_name(), 0, 1))
        store.run(Follow("default", "watcher", reader_name(), 1))
        jobs.update(max_size=3)
        with serving(store) as server:
            assert [ask(server.url, "/default/messages", "POST", b"c")[0] for _ in range(2)] == [201, 507]
            text = ask(server.url, "/-/metrics")[2].decode()
    found: Labels = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found[sample.name]
            for label, value in sample.labels.items():
                labels[label].add(value)
    return found


# Expressions


def dashboard_expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            matched = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert matched is not None
            yield f"count by ({matched[2]}) ({matched[1]})"


EXPRESSIONS = [*(rule["expr"] for rule in RULES), *dashboard_expressions()]


def filled(expression: str) -> str:
    """With what Grafana fills in."""
    return re.sub(r"\$\{?\w+\}?", ".*", expression.replace("$__rate_interval", "2m"))


def parts(node: Any) -> Iterator[Any]:
    """A parsed expression and everything in it."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param", "args"):
        inner = getattr(node, name, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None:
                yield from parts(each)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_expression_asks_for_metrics_and_labels_that_a_server_has(expression: str, metrics: Labels) -> None:
    selected: set[str] = set()
    for node in parts(promql.parse(filled(expression))):
        if isinstance(node, promql.VectorSelector):
            assert node.name is not None
            selected.add(node.name)
            assert node.name in metrics or node.name == "up"
            for matcher in node.matchers.matchers:
                if matcher.name in SCRAPED:
                    continue
                values = metrics[node.name][matcher.name]
                assert any(re.fullmatch(matcher.value, value) for value in values), (matcher.name, matcher.value)
                if matcher.name in ("event", "state", "mode"):
                    assert set(matcher.value.split("|")) <= values
    assert selected
    there = SCRAPED.union(*(metrics[name] for name in selected if name in metrics))
    for clause in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression):
        assert {name.strip() for name in clause.split(",")} <= there


def test_legends_name_labels_that_the_expression_leaves(metrics: Labels) -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            names = {
                node.name
                for node in parts(promql.parse(filled(target["expr"])))
                if isinstance(node, promql.VectorSelector)
            }
            left = set(kept[1].split(", ")) if kept else SCRAPED.union(*(metrics[name] for name in names if name))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, panel["title"]


# Alerts


@pytest.mark.skipif(not PROMTOOL, reason="promtool is missing: run `make tools`, or install Prometheus")
@pytest.mark.parametrize(
    "command", [["check", "rules", "deploy/alerts.yaml"], ["test", "rules", "tests/alerts.test.yaml"]]
)
def test_prometheus_takes_the_rules_and_they_fire_as_they_should(command: list[str]) -> None:
    ended = subprocess.run([PROMTOOL, *command], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_alert_is_tested_and_its_runbook_is_in_the_document() -> None:
    tests = (ROOT / "tests" / "alerts.test.yaml").read_text()
    anchors = {
        re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#{2,4} (.+)$", DOCUMENT, re.MULTILINE)
    }
    for rule in RULES:
        assert tests.count(rule["alert"]) >= 2, "when it fires, and when it does not"
        assert rule["labels"]["severity"] in ("critical", "warning")
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/watching.md"
        assert anchor in anchors
        assert f"`{rule['alert']}`" in DOCUMENT


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_summaries_name_labels_that_the_alert_has(rule: dict[str, Any], metrics: Labels) -> None:
    names = {node.name for node in parts(promql.parse(rule["expr"])) if isinstance(node, promql.VectorSelector)}
    labels = SCRAPED.union(*(metrics[name] for name in names if name in metrics))
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


# The dashboard


def test_the_dashboard_is_whole() -> None:
    assert DASHBOARD["uid"] == "penstock"
    assert "id" not in DASHBOARD  # Grafana gives one when it imports it
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "queue"]
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(PANELS))) - {"__rate_interval"}
    assert used == set(variables)
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"]
            assert panel["type"] in ("stat", "timeseries")
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_panels_lie_beside_and_below_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


# The document


def test_the_metrics_of_the_document_are_those_of_the_server(metrics: Labels) -> None:
    told = {
        name: set(filter(None, (labels or "").replace(" ", "").split(",")))
        for line in DOCUMENT.splitlines()
        if line.startswith("| `")
        for name, labels in re.findall(r"`((?:penstock|process)_\w+)(?:\{([^}]*)\})?`", line.split("|")[1])
    }
    there = {}
    for name, labels in metrics.items():
        family = re.sub(r"_(bucket|sum|count)$", "", name) if "commit" in name else name
        there[family] = set(labels) - {"le"}
    assert told == there
