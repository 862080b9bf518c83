"""The documentation is in step with the code: generated blocks, metric keys, configuration fields, links."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import compose_config
from methods import NAMES
from synthetic_runs import write_realistic_run

from analysis.pages import __main__ as pages
from analysis.pages import project
from experiments import quickstart
from rtpo.algorithms import algorithms, load_algorithm
from rtpo.engines.backend import StepResult
from rtpo.errors import DataError, Stopped
from rtpo.harness import diagnostics
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import StepLog, Trained
from rtpo.rows import trajectory_rows
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, StopRequest, sample_line
from rtpo.types import (
    Grade,
    GradeOutcome,
    Role,
    Rollout,
    Snapshot,
    StopReason,
    Task,
    Termination,
    ToolOutcome,
    ToolUse,
    Turn,
    as_ids,
)

DOCS = PROJECT / "docs"
METRICS = (DOCS / "results" / "metrics.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """A page's part under a second-level heading."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def table(text: str, *columns: str) -> dict[str, str]:
    """First cell to second cell of the first table with these first columns, without backticks and marks."""
    lines = iter(text.splitlines())
    for line in lines:
        if [cell.strip() for cell in line.split("|")][1 : 1 + len(columns)] == list(columns):
            break
    next(lines)
    rows: dict[str, str] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        key, value = (cell.strip() for cell in line.split("|")[1:3])
        rows[key.removesuffix(" †").strip("`")] = value.strip("`")
    return rows


def documented(title: str) -> set[str]:
    return {key for shown in table(section(METRICS, title), "Key") for key in expanded(shown)}


def expanded(key: str) -> list[str]:
    """`a/{b,c}` is `a/b` and `a/c`."""
    match = re.search(r"\{([^}]*)\}", key)
    if match is None:
        return [key]
    return [each for part in match[1].split(",") for each in expanded(key[: match.start()] + part + key[match.end() :])]


def flat(record: dict[str, Any], nested: tuple[str, ...] = ()) -> set[str]:
    """A record's keys with <k> for turn indices; those of the dictionaries and lists in `nested` by their own keys."""
    keys = set()
    for key, value in record.items():
        name = re.sub(r"turn_\d+", "turn_<k>", key)
        inner = value if isinstance(value, list) else [value]
        if key in nested:
            keys |= {f"{name}.{part}" for item in inner for part in flat(item)}
            if isinstance(value, dict):
                continue
        keys.add(name)
    return keys


def rollout(uid: str, turns: int, reward: float) -> Rollout:
    """A path of turns of two tokens each."""
    taken = tuple(
        Turn(
            k,
            as_ids([1, 2, 3]),
            as_ids([7, 8]),
            np.full(2, -0.5, np.float32),
            0,
            StopReason.STOP,
            Snapshot((), ""),
            as_ids([4]),
            (ToolUse("calculator", ToolOutcome.OK),),
        )
        for k in range(turns)
    )
    grade = Grade(GradeOutcome.GRADED, reward)
    return Rollout(uid, Task("q", "?", 1), Role.CHAIN, 0, None, taken, Termination.ANSWERED, grade)


@pytest.fixture
def rollouts() -> list[Rollout]:
    return [rollout("a", 1, 0.0), rollout("b", 3, 1.0)]


@pytest.fixture
def update(rollouts: list[Rollout]) -> dict[str, Any]:
    """An update's entry."""
    rows = [row for path in rollouts for row in trajectory_rows(path, "flattened", path.reward - 0.5, 0.5, "q")]
    tokens = np.full(sum(int(row.mask.sum()) for row in rows), -0.5, np.float32)
    sums = {"tokens": 8.0, "clipped": 0.0, "policy_loss": 0.0, "kl_loss": 0.0, "residual": 0.0}
    return diagnostics.update_metrics(rows, rows, tokens, -tokens, tokens) | diagnostics.step_metrics(
        [StepResult(1.0, 0.0, sums, 1e-6, 40)]
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that has done nothing, on a harness that cannot do anything."""
    folder = RunFolder(tmp_path)
    harness: Any = SimpleNamespace(ledger=Ledger(Budget(100)), policy_version=0)
    return Run(compose_config(), folder, harness, [Task("q", "?", 1)], [], None, StopRequest())


def test_the_front_page_is_short() -> None:
    assert len((PROJECT / "README.md").read_bytes()) <= 9_000


def test_the_index_has_every_page() -> None:
    """A method's page may be in the table of methods alone, which is generated."""
    index, methods = DOCS / "index.md", DOCS / "method" / "methods.md"
    linked = {
        (page.parent / path).resolve()
        for page in (index, methods)
        for path in re.findall(r"\]\(([^)#]+\.md)", page.read_text(encoding="utf-8"))
    }
    assert linked >= set(DOCS.rglob("*.md")) - {index}


def test_pages_are_what_the_records_give() -> None:
    assert pages.main(["--check"]) == 0


def test_the_quickstart_ends_as_its_parts_do(tmp_path: Path) -> None:
    configs = quickstart.configurations([f"results={tmp_path}"])
    with pytest.raises(DataError, match="holds no finished run"):
        quickstart.show(configs[0])
    write_realistic_run(tmp_path, "rtpo", 0, questions=20)
    quickstart.show(configs[0])
    assert (tmp_path / "tables" / "quickstart_runs.md").exists()
    assert (tmp_path / "figures" / "quickstart_training.png").exists()


def test_a_stop_as_a_run_ends_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, stop = [], StopRequest()

    def train(config: RunConfig, heard: StopRequest) -> None:
        trained.append(config.label)
        heard.reason = "SIGTERM"

    monkeypatch.setattr(quickstart, "train", train)
    with pytest.raises(Stopped, match=r"SIGTERM before .*grpo-seed0\. Run the same command to go on"):
        quickstart.train_all(quickstart.configurations([]), stop)
    assert trained == ["rtpo"]


def test_every_rollout_metric_is_documented(rollouts: list[Rollout]) -> None:
    assert flat(diagnostics.rollout_metrics(rollouts, Role.CHAIN)) == documented("Entries of `rollout_calls`")


def test_every_update_metric_is_documented(update: dict[str, Any]) -> None:
    assert flat(update, ("zero_advantage", "groups", "turn_tokens")) == documented("Entries of `updates`")


def test_the_keys_of_an_empty_update_are_marked() -> None:
    marked = set(re.findall(r"^\| `(\S+)` † \|", section(METRICS, "Entries of `updates`"), re.MULTILINE))
    assert set(diagnostics.empty_update()) == marked


def test_every_ledger_key_is_documented() -> None:
    ledger = Ledger(Budget(1)).as_dict()
    assert flat(ledger, ("budget", "tool_calls", "seconds")) == documented("Ledger")


def test_every_key_of_the_line_files_is_documented(run: Run, rollouts: list[Rollout]) -> None:
    calls = [diagnostics.rollout_metrics(rollouts, Role.CHAIN)]
    step = run._write(StepLog(calls, [diagnostics.empty_update()], [], rollouts), tasks=1)
    assert flat(step) == documented("Lines of `steps.jsonl`")
    evaluation = run._evaluation_lines("after", "greedy", [tuple(rollouts)])[0]
    assert flat(evaluation) == documented("Lines of `evaluations.jsonl`")
    assert flat(diagnostics.path_line(1, rollouts[0])) == documented("Lines of `paths.jsonl`")
    sample = sample_line(0, rollouts[0], [Trained(rollouts[0].uid, 0, 0, 0.5, "q")])
    assert flat(sample, ("turns", "trained")) == documented("Lines of `rollouts.jsonl`")


@pytest.mark.parametrize("enum", [ToolOutcome, Termination, StopReason, GradeOutcome])
def test_every_value_that_is_counted_is_named(enum: Any) -> None:
    named = section(METRICS, "Entries of `rollout_calls`")
    assert [member.value for member in enum if f"`{member.value}`" not in named] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_method_has_a_meaning(name: str) -> None:
    config = load_algorithm(name).config
    meanings = "\n".join(base.__doc__ or "" for base in config.__mro__ if is_dataclass(base))
    said = {
        field
        for names in re.findall(r"(?:^ *|\. )([a-z][\w, ]*):", meanings, re.MULTILINE)
        for field in names.split(", ")
    }
    assert {field.name for field in fields(config)} <= said


def test_every_algorithm_is_in_the_comparison() -> None:
    for kind, is_rung in (("methods", False), ("rungs", True)):
        shown = project.methods(kind).set_index("Algorithm")
        names = [name for name in algorithms() if load_algorithm(name).is_rung == is_rung]
        assert [re.sub(r"\[?`(\w+)`.*", r"\1", title) for title in shown.index] == names
        assert shown["Rollout plan"].tolist() == [load_algorithm(name).plan for name in names]


@pytest.mark.parametrize("name", ["anchored", "grpo", "seeupo", "arpo", "tree_grpo"])
def test_configurations_of_a_method_are_named_on_its_page(name: str) -> None:
    text = (DOCS / "method" / f"{name}.md").read_text(encoding="utf-8")
    found = [path.stem for path in (PROJECT / "configs" / "algorithm").glob(f"{name}_*.yaml")]
    assert found
    assert [label for label in found if f"`{label}`" not in text] == []


def test_toy_settings_are_those_of_a_toy_run() -> None:
    stated = table((DOCS / "run" / "tasks.md").read_text(encoding="utf-8"), "Field", "Toy math")
    assert len(stated) > 10
    assert stated == {path: in_yaml(at(compose_config(), path)) for path in stated}


def at(config: RunConfig, path: str) -> Any:
    value: Any = config.as_dict()
    for key in path.split("."):
        value = value[key]
    return value


def in_yaml(value: Any) -> str:
    return yaml.safe_dump(value).removesuffix("...\n").strip()


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8"))
    local = [(page.parent / path, anchor) for path, anchor in links if "://" not in path]
    assert [path for path, _ in local if not path.exists()] == []
    for path, anchor in local:
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {heading.lower().replace(" ", "-").replace("`", "") for heading in headings}
