"""The report of an experiment, made by wandb_workspaces against a stand-in for the part of W&B's GraphQL interface that
it asks. W&B itself is not asked, nor is the report drawn."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from json_server import Asked, Reply, Server

from rtpo.harness.curves import CURVES
from rtpo.run.config import PROJECT

COMMAND = (sys.executable, "experiments/maintenance/wandb_report.py")
PAGE = {"__typename": "PageInfo", "endCursor": "", "hasNextPage": False}
DATE = "2026-01-01T00:00:00"
VIEWER = {"id": "1", "username": "me", "entity": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
RTPO = {"__typename": "Project", "id": "1", "name": "rtpo", "entityName": "me", "createdAt": "", "isBenchmark": False}


def answer(asked: Asked) -> Reply:
    query = (asked.body or {}).get("query", "")
    data: dict[str, Any] = {}
    if "upsertView" in query:
        view = asked.body["variables"] | {"id": "VmlldzoxMjM=", "project": RTPO, "createdAt": DATE, "updatedAt": DATE}
        data = {"upsertView": {"view": view, "inserted": True}}
    elif "ProjectInternalId" in query:
        known = asked.body["variables"]["entityName"] == "me"
        data = {"project": {"id": "1", "internalId": "1"} if known else None}
    elif "GetProjects" in query:
        data = {"models": {"pageInfo": PAGE, "edges": [{"node": RTPO | {"user": None}, "cursor": ""}]}}
    elif "viewer" in query:
        data = {"viewer": VIEWER}
    return Reply(body=json.dumps({"data": data}).encode(), headers={"Content-Type": "application/json"})


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server("", answer)
    yield running
    running.close()


def made(url: str, home: Path, *arguments: str, key: str | None = "0" * 40) -> subprocess.CompletedProcess[str]:
    """By the command, in a process of its own, since W&B's library has one service a process."""
    settings = {"WANDB_BASE_URL": url, "HOME": str(home), "NO_PROXY": "127.0.0.1", "WANDB_SILENT": "true"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")} | settings
    environment |= {} if key is None else {"WANDB_API_KEY": key}
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_report_has_the_papers_panels_a_line_a_method(server: Server, tmp_path: Path) -> None:
    done = made(server.url, tmp_path, "main_table_a100x8_math_paper")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{server.url}/me/rtpo/reports/main_table_a100x8_math_paper--VmlldzoxMjM=\n"
    (saved,) = [
        asked.body["variables"] for asked in server.asked if "upsertView" in (asked.body or {}).get("query", "")
    ]
    assert (saved["entityName"], saved["projectName"], saved["type"]) == ("me", "rtpo", "runs")
    assert "main_table_a100x8_math_paper" in saved["spec"]
    grids = [block["metadata"] for block in json.loads(saved["spec"])["blocks"] if block["type"] == "panel-grid"]
    panels = [panel["config"] for grid in grids for panel in grid["panelBankSectionConfig"]["panels"]]
    assert [panel["metrics"] for panel in panels[:2]] == [["train/ratio"], ["train/kl"]]
    for panel in panels:
        assert set(panel["metrics"]) <= {*(curve.key for curve in CURVES), "evaluation/sampled/success"}
        assert (panel["xAxis"], panel["groupBy"], panel["groupAgg"]) == ("train/rollouts", "group", "mean")


def test_what_keeps_a_report_from_being_made_is_named(server: Server, tmp_path: Path) -> None:
    for arguments, key, said in (
        (("e",), None, "key"),
        (("e", "--entity", "you"), "0" * 40, "you/rtpo"),
        (("an experiment",), "0" * 40, "EXPERIMENT"),
    ):
        done = made(server.url, tmp_path, *arguments, key=key)
        assert done.returncode == 1
        assert done.stdout == ""
        (sentence,) = done.stderr.splitlines()
        assert sentence.startswith("error: ")
        assert said in sentence
