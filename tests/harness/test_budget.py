"""The ledger: never above the budget, nothing unused that a task would fit in, exact over crashes."""

import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, in_turn, scripted_harness

from rtpo.errors import BudgetExceeded, DataError
from rtpo.harness.budget import Budget, Charge, ChargeJournal, Ledger, lost_since
from rtpo.rows import trajectory_rows, turn_row
from rtpo.types import Role


def test_a_step_stays_within_its_reservation() -> None:
    ledger = Ledger(Budget(10))
    ledger.reserve(0)
    with pytest.raises(BudgetExceeded):
        ledger.charge(1)
    with pytest.raises(BudgetExceeded, match=r"budget\.rollouts"):
        ledger.reserve(11)
    ledger.reserve(10)
    with pytest.raises(BudgetExceeded):
        ledger.charge(11)
    with pytest.raises(ValueError, match="reserved"):
        ledger.reserve(1)
    fresh = Ledger(Budget(1))
    for bad in (
        *(lambda: ledger.charge(-1), lambda: fresh.reserve(-1), lambda: Budget(-1)),
        *(lambda: fresh.tasks_that_fit(4, 0), lambda: fresh.tasks_that_fit(0, 4)),
    ):
        with pytest.raises(ValueError, match=r"negative|at least 1"):
            bad()
    assert (ledger.rollouts, ledger.share) == (0, 0)
    ledger.charge(10)
    assert (ledger.rollouts, ledger.reserved, ledger.share) == (10, 0, 1)
    assert Ledger(Budget(0)).share == 0


@given(
    total=st.integers(1, 300),
    batch=st.integers(1, 8),
    worst_case=st.integers(1, 30),
    use=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_a_run_leaves_less_than_a_task_of_its_budget(total: int, batch: int, worst_case: int, use: list[float]) -> None:
    ledger, step = Ledger(Budget(total)), 0
    while tasks := ledger.tasks_that_fit(batch, worst_case):
        ledger.reserve(tasks * worst_case)
        for part in (0.5, 0.5):
            ledger.charge(max(1, int(use[step % len(use)] * part * tasks * worst_case)) if ledger.reserved else 0)
            assert ledger.rollouts + ledger.reserved <= total
        ledger.release()
        step += 1
    assert ledger.rollouts <= total
    assert ledger.remaining < worst_case


events = st.lists(
    st.one_of(
        st.tuples(st.just("charge"), st.integers(0, 9)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("crash while writing"), st.integers(1, 30)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(events)
def test_a_crash_loses_exactly_what_was_dispatched_since_the_checkpoint(history: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):
        path = Path(folder) / "a" / "run" / "journal.jsonl"
        ledger = Ledger(Budget(1_000_000), journal=ChargeJournal(path))
        checkpoint = json.dumps(ledger.as_dict())
        dispatched = kept = 0
        for event, n in history:
            if event == "charge":
                ledger.reserve(10)
                ledger.charge(n)
                ledger.release()
                dispatched += n
                assert n == 0 or json.loads(path.read_text().splitlines()[-1])["rollouts"] == ledger.rollouts
            elif event == "checkpoint":
                checkpoint, kept = json.dumps(ledger.as_dict()), ledger.rollouts
            else:
                if event == "crash while writing":
                    line = json.dumps({"charged": 5, "total": ledger.dispatched + 5})
                    with path.open("a") as file:
                        file.write(line[:n])
                ledger = Ledger.resume(json.loads(checkpoint), path)
                assert ledger.rollouts == kept
            assert ledger.dispatched == dispatched
            assert lost_since(path, 0) == dispatched
            ledger.check_journal()


DAMAGED = ("{", "[]", '{"charged": 1}', '{"charged": 1, "total": 4}', '{"charged": 0, "total": 2}', "\ud800", "\0\0")


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named_and_may_be_cut_off_where_it_is_the_last(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    first, third = (b'{"charged": %d, "total": %d}\n' % values for values in ((2, 2), (1, 3)))
    damaged = first + line.encode(errors="surrogatepass") + b"\n"
    saved = Ledger(Budget(50)).as_dict()
    for data, advice in ((damaged + third, ""), (damaged, "cut off this last line .* or ")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"journal\.jsonl line 2 is damaged \(.*\): {advice}restore"):
            Ledger.resume(saved, path)
    path.write_bytes(first)
    assert Ledger.resume(saved, path).lost == 2


def test_a_journal_is_held_against_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(Budget(50), journal=ChargeJournal(tmp_path / "journal.jsonl"))
    ledger.reserve(30)
    ledger.charge(8)
    ledger.check_journal()
    ChargeJournal(tmp_path / "journal.jsonl").append(Charge(1, 9, 9))
    with pytest.raises(DataError, match="1 rollout "):
        ledger.check_journal()
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(DataError, match="0 rollouts"):
        ledger.check_journal()


def test_counters_and_their_round_trip(tmp_path: Path) -> None:
    ledger = Ledger(Budget(100), journal=ChargeJournal(tmp_path / "journal.jsonl"))
    assert {value for value in ledger.as_dict().values() if not isinstance(value, dict)} == {0}
    ledger.reserve(50)
    ledger.charge(20)
    harness = scripted_harness(in_turn(CALL_1, CALL_2, RIGHT, "<tool_call> 5</tool_call>", WRONG))
    ((trunk,),) = harness.rollout([TASK], n=1, role=Role.TRUNK)
    ((fork,),) = harness.rollout([trunk.boundary(1)], n=1, role=Role.SIBLING)
    ledger.count_rollouts([trunk, fork])
    ledger.count_free([fork, fork])
    assert (ledger.turn_generations, ledger.generated_tokens) == (5, 12 + 12 + 10 + 4 + 8)
    assert ledger.context_tokens == 14 + 32 + 50 + 32 + 48
    assert (ledger.rollouts, ledger.free_rollouts, ledger.free_tokens) == (20, 2, 24)
    assert {outcome: count for outcome, count in ledger.tool_calls.items() if count} == {"ok": 2, "malformed": 1}
    ledger.count_update(trajectory_rows(trunk, "flattened", 1.0, 1.0, "g"))
    ledger.count_update([turn_row(trunk.turns[1], trunk, 0.0, 1.0, "g")])
    ledger.count_step(30, 20)
    ledger.count_step(25, 20)
    ledger.count_forward(12, 10)
    assert (ledger.trained_tokens, ledger.computed_tokens, ledger.optimizer_steps) == (34 + 12, 40, 2)
    assert (ledger.row_tokens, ledger.scored_tokens) == (67, 10)
    for power, phase in enumerate(("generate", "score", "update", "sync", "save", "evaluate")):
        ledger.count_seconds(phase, 3.0**power)
        ledger.count_seconds(phase, 1 / 3)
    assert ledger.training_seconds == pytest.approx(1 + 3 + 9 + 27 + 4 / 3)
    ledger.count_prefilled(5, 12)
    ledger.count_prefilled(20, 23)
    assert ledger.prefilled_tokens == 10
    data = json.loads(json.dumps(ledger.as_dict()))
    assert Ledger.from_dict(data) == ledger
    assert Ledger.from_dict(data).as_dict() == ledger.as_dict() == data
    ledger.count_prefilled(None, 3)
    ledger.count_prefilled(23, 24)
    assert ledger.prefilled_tokens is None


def test_a_ledger_of_another_version_is_refused() -> None:
    data = Ledger(Budget(1)).as_dict()
    with pytest.raises(DataError, match="extra"):
        Ledger.from_dict({**data, "extra": 1})
    with pytest.raises(DataError, match="save"):
        Ledger.from_dict({**data, "seconds": {k: v for k, v in data["seconds"].items() if k != "save"}})
