"""What pages say of the code that their runs were made by, on made-up runs."""

from datetime import datetime, timedelta
from pathlib import Path

from synthetic_runs import answers, step, update, write_run

from analysis.records import load_runs
from analysis.since import CHANGES, note

CAME = datetime.fromisoformat(CHANGES[0].at)


def told(folder: Path, label: str, algorithm: str, started: datetime, alpha: float = 0.5) -> str:
    manifest = {"algorithm": algorithm, "started": started.isoformat(), "commit": "abcdef" * 7, "dirty": False}
    steps, lines = [step(1, 10, 0.5, [update(1, 0.0, 0.0)])], answers("after", "sampled", {"a": [1.0]})
    write_run(folder, label, 0, steps, lines, manifest=manifest, config={"algorithm": {"label": label, "alpha": alpha}})
    return note(load_runs(folder))


def test_what_has_changed_since_is_told_of_the_runs_it_matters_to(tmp_path: Path) -> None:
    before, after = CAME - timedelta(days=1), CAME + timedelta(days=1)
    seeupo = told(tmp_path / "before", "seeupo_flat", "seeupo", before)
    assert seeupo.startswith("The runs were made at commit abcdefabcdef. What has changed in the code since: SeeUPO's")
    assert "(1 run: `seeupo_flat`). No other change" in seeupo
    made_anew = "The runs were made at commit abcdefabcdef. No change since is known to matter to them."
    assert told(tmp_path / "after", "seeupo_flat", "seeupo", after) == made_anew
    assert told(tmp_path / "other", "rtpo", "rtpo", before) == made_anew
    assert "(none of them has α = 1)" in told(tmp_path / "half", "arpo", "arpo", before)
    assert "(1 run: `arpo`)" in told(tmp_path / "one", "arpo", "arpo", before, alpha=1.0)
    assert note([]) == ""
