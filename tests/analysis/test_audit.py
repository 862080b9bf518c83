"""The supplement's audits, on records whose answers are known by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_runs import episode, held_out, path, write_evaluation, write_run

from analysis import audit
from analysis.paper import metrics
from analysis.paper.metrics import AUDIT, COLUMNS, QA
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, WRITES

TASKS = next((Path(__file__).parents[1] / "fixtures" / "airline").rglob("tasks.json")).parent


def trunk(reward: float | None, turns: int, parent: str | None = None, **changes: Any) -> dict[str, Any]:
    return path(1, "q/0", episode(reward, turns=turns, tokens=10 * turns, **changes), parent)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    paths = [
        trunk(1.0, 2, calls=(4, 4, 3)),
        trunk(0.0, 1),
        trunk(0.0, 4, termination="turn_limit"),
        trunk(0.0, 3, detail=TOO_MANY_ERRORS, calls=(1, 1, 0)),
        trunk(None, 9),
        trunk(1.0, 5, parent="0.0.0.0"),
    ]
    return write_run(tmp_path, "rtpo", 0, [], [], paths=paths, experiment="main")


def cells(table: Any) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def test_trunks_are_the_graded_paths_that_began_at_a_task(run: Path) -> None:
    table = audit.trunk_table(run, 2)
    assert table.header == ("", "All", "1/2", "2/2")
    expected = {
        "Paths": ("4", "2", "2"),
        "Success, %": ("25.00", "50.00", "0.00"),
        "Ended normally and failed, %": ("25.00", "50.00", "0.00"),
        "No terminal signal, %": ("50.00", "0.00", "100.00"),
        "Failed within 3 turns, %": ("50.00", "50.00", "50.00"),
        "Length on average, turns": ("2.50", "1.50", "3.50"),
        "Turns of a success on average": ("2.00", "2.00", "—"),
        "Calls executed well, %": ("60.00", "75.00", "0.00"),
        "Tokens a path": ("25.0", "15.0", "35.0"),
    }
    assert expected.items() <= cells(table).items()


def sample(position: int, reward: float | None, calls: int = 0, ok: int = 0, **audited: Any) -> dict[str, Any]:
    facts = {"repeated": 0, "programs": calls, "valid_programs": calls, "answer_first": False} | audited
    of = episode(reward, calls=(calls, calls, ok))
    return {"position": position, "uid": f"q/{position}", "sample": 0, "audit": facts if calls else None, **of}


def test_tool_calls_are_counted_over_the_first_questions(run: Path) -> None:
    firsts = [
        sample(2, 1.0, calls=1, ok=1, answer_first=True),
        sample(0, None),
        sample(1, 0.0, calls=2, ok=1, repeated=1, valid_programs=1),
        sample(3, 1.0, calls=1, ok=1),
    ]
    later = [sample(each["position"], 1.0, calls=9, ok=9) | {"sample": 1} for each in firsts]
    table = cells(audit.tool_table(write_evaluation(run, "gsm8k", [*firsts, *later]), 3))
    values = [value for (value,) in table.values()]
    assert values == ["3", "66.67", "1.00", "1", "1", "1", "2/3", "2/3", "1/2", "1/2", "1"]


def test_the_airline_stands_beside_doing_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_write = {
        f"tau3_airline/{task['id']}": any(a["name"] in WRITES for a in task["evaluation_criteria"]["actions"] or [])
        for task in json.loads((TASKS / "tasks.json").read_text())
    }
    tasks = sorted(needs_write, key=needs_write.__getitem__)
    calls = {"cancel_reservation": {"attempted": 1, "executed": 1, "ok": 1, "failed": 0}}
    lines = [
        held_out(uid, place, episode(float(place == 0), tokens=20) | {"calls": calls})
        for uid in (tasks[0], tasks[-1])
        for place in range(4)
    ]
    lines += [line | {"when": "before", "reward": 1.0} for line in lines] + [lines[0] | {"mode": "greedy"}]
    run = write_run(tmp_path, "rtpo", 0, [], lines)
    table = cells(audit.airline_table(run, TASKS))
    assert [table[f"{name}, %"][0] for name in ("Pass@1", "Pass@4", "Pass^4")] == ["25.00", "100.00", "0.00"]
    assert table["Pass@1 on tasks that need a write, %"] == ("25.00",)
    assert table["Writes attempted an episode"] == ("1.00",)
    assert audit.main(["airline", str(run), "--tasks", str(TASKS), "--format", "csv"]) == 0
    assert "Response tokens a success,80.0" in capsys.readouterr().out


# the supplement's airline tables, from episodes made to have the supplement's own counts

PLAIN = {**dict.fromkeys(COLUMNS, 0.0), "unit": "0", "success": 0.0, "turns": 1.0, "ended": 1.0, "tokens": 100.0}


def check(samples: Sequence[dict[str, Any]], **expected: float) -> None:
    frame = pd.DataFrame([PLAIN | sample for sample in samples]).assign(**dict.fromkeys((*QA, *AUDIT), float("nan")))
    values = {name: metrics.value_of(name, frame) for name in expected}
    assert values == pytest.approx(expected, rel=0.003, abs=0.0002, nan_ok=True)


def test_the_failure_table() -> None:
    """Its first step: of 32 trunks 5 succeed, 15 end and fail, 12 give no signal; 1, 5, 7 and 8 fail within 1, 2, 3 and
    5 turns; a success takes 4.40 turns, a failure 13.30."""
    turns = [1, 2, 2, 2, 2, 3, 3, 4, *[17] * 2, *[18] * 17]
    lost = [{"turns": k, "ended": float(place < 15)} for place, k in enumerate(turns)]
    samples = [*lost, *({"turns": k, "success": 1.0} for k in (4, 4, 4, 5, 5))]
    check(samples, success=0.1563, ended_failed=0.4688, no_signal=0.375, success_turns=4.4, failed_turns=13.3)
    check(samples, failed_1=0.0313, failed_2=0.1563, failed_3=0.2188, failed_5=0.25)
    check(samples[:1], success_turns=float("nan"))


def test_passes_over_twenty_tasks_and_tools() -> None:
    """RTPO's row: 14 of 80, six tasks at least once, two always. GRPO's: 118 calls of which 68 ran, 2,469.7 tokens a
    reply of 80 episodes with 9 successes."""
    wins = [4, 4, 2, 2, 1, 1] + [0] * 14
    samples = [{"unit": str(task), "success": float(n < won)} for task, won in enumerate(wins) for n in range(4)]
    check(samples, pass_at_1=0.175, pass_at_4=0.3, pass_all_4=0.1)
    samples = [{"tokens": 2470 - 24 * (n == 79), "success": float(n < 9)} for n in range(80)]
    samples[0] |= {"attempted": 118, "executed": 118, "ok": 68}
    check(samples, execution=0.5763, calls_each=1.475, tokens_per_success=21952.9, successes_per_1k=0.0456)
