"""The documentation is in step with the code: generated blocks, metric keys, configuration fields, links."""

import json
import re
from dataclasses import asdict, fields
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
from analysis.pages import blocks as readme
from experiments import quickstart
from experiments.speed.shared import Case
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
    return set(table(section(METRICS, title), "Key"))


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


def test_generated_blocks_are_what_the_records_give() -> None:
    assert pages.main(["--check"]) == 0


def test_generated_blocks_are_filled_checked_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    words = ["before", "<!-- generated:figure -->", "<!-- end -->", "between"]
    page.write_text("\n".join([*words, "<!-- generated:figure -->", "stale", "<!-- end -->", ""]))
    assert pages.main(["--check", "--project", str(tmp_path)]) == 1
    assert pages.main(["--project", str(tmp_path)]) == 0
    assert pages.main(["--check", "--project", str(tmp_path)]) == 0
    block = "<!-- generated:figure -->\nnot run\n<!-- end -->\n"
    assert page.read_text() == f"before\n{block}between\n{block}"
    example = "```markdown\n<!-- generated:weather -->\n<!-- end -->\n```\n"
    page.write_text(f"{example}{block}")
    assert readme.filled(tmp_path, page, {}) == f"{example}{block}"
    page.write_text("<!-- generated:weather -->\n<!-- end -->\n")
    with pytest.raises(DataError, match="'weather': no such block"):
        readme.filled(tmp_path, page, {})
    page.write_text("<!-- generated:figure -->\nno end\n")
    with pytest.raises(DataError, match="not closed"):
        readme.filled(tmp_path, page, {})


def test_one_block_is_redrawn_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, block = tmp_path / "README.md", "<!-- generated:{} -->\n{}<!-- end -->\n"
    page.write_text(block.format("figure", "stale\n") + block.format("bench", "stale\n"))
    assert pages.main(["bench", "--check", "--project", str(tmp_path)]) == 1
    assert pages.main(["bench", "--project", str(tmp_path)]) == 0
    assert page.read_text() == block.format("figure", "stale\n") + block.format("bench", "not run\n")
    assert pages.main(["bench", "--check", "--project", str(tmp_path)]) == 0
    assert pages.main(["bench", "weather", "--project", str(tmp_path)]) == 1
    assert "error: weather: no such block or page; there are quickstart, " in capsys.readouterr().err
    assert pages.main(["map", "--project", str(tmp_path)]) == 1
    assert "error: docs/results/map.md: there is no such page under" in capsys.readouterr().err


def test_pages_of_their_own_records_are_there_and_share_no_name_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readme.own_pages(PROJECT).keys() == readme.OWN_PAGES.keys()
    monkeypatch.setitem(readme.BLOCKS, "regimes", lambda project, page: "")
    with pytest.raises(ValueError, match=r"blocks of map.md are called as others are: regimes"):
        readme.own_pages(PROJECT)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose README has all blocks of the reference runs, which are called quickstart and not there yet."""
    monkeypatch.setattr(readme, "EXPERIMENT", "quickstart")
    blocks = [f"<!-- generated:{name} -->\n<!-- end -->\n" for name in ("quickstart", "figure", "bench")]
    (tmp_path / "README.md").write_text("\n".join(blocks))
    return tmp_path


def test_the_reference_runs_become_a_table(project: Path) -> None:
    page = project / "README.md"
    assert readme.quickstart(project, page) == readme.front(project, page) == "not run\n"
    assert readme.figure(project, page) == "not run\n"
    for seed in (0, 4, 1):
        write_realistic_run(project / "results", "rtpo", seed, questions=20)
    front = readme.front(project, page)
    assert "| RTPO | " in front
    assert "3 runs, seeds 0, 1, 4; budget 1,024 rollouts a run" in front
    assert "questions × samples 20 × " in front
    text = readme.quickstart(project, page)
    assert text.startswith(
        "`python experiments/quickstart.py experiment_name=quickstart seed=<seed>` for the seeds 0, 1, 4: 3 runs, "
        "budget 1,024 rollouts a run. Training and evaluation took 101 s a run (median, start-up apart; logical CPUs: "
        "4). The runs were made at commit 0123456789ab. No change since is known to matter to them.\n"
    )
    assert "toy-scale results, not the paper's" in text
    assert "RTPO" in text


def test_the_figure_is_drawn_from_the_present_records(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check, write = ["--check", "--project", str(project)], ["--project", str(project)]
    assert pages.main(write) == 0
    assert pages.main(check) == 0
    assert not (project / "docs").exists()
    write_realistic_run(project / "results", "rtpo", 0, questions=20)
    assert pages.main(write) == 0
    assert pages.main(check) == 0
    first = (project / "docs" / "results" / "reference.png").read_bytes()
    pages.main(write)
    assert (project / "docs" / "results" / "reference.png").read_bytes() == first
    folder = write_realistic_run(project / "results", "rtpo", 1, questions=20)
    capsys.readouterr()
    assert pages.main(check) == 1
    assert f"{project}/docs/results/reference.png is not what the records give" in capsys.readouterr().err
    assert pages.main(write) == pages.main(check) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"ended": "later"}))
    assert pages.main(check) == 1


def test_figures_are_linked_from_where_the_page_is(project: Path) -> None:
    write_realistic_run(project / "results", "rtpo", 0, questions=20)
    assert "](docs/results/reference.png)" in readme.figure(project, project / "README.md")
    assert "](../results/reference.png)" in readme.figure(project, project / "docs" / "run" / "toy.md")


def test_a_benchmark_record_becomes_a_table(project: Path) -> None:
    page = project / "README.md"
    assert readme.bench(project, page) == "not run\n"
    slow = Case("ours | theirs", 1.234, "x", 1.0, False, "", {})
    fast = Case("decoder", 3.21, "x", 3.0, True, "", {})
    missing = Case("vLLM", None, "x", 1.0, True, "", {})
    record: dict[str, Any] = {
        "started": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "dirty": True,
        "machine": {"processor": "x86_64", "logical_cpus": 4},
        "repeats": 5,
        "cases": [
            {"part": part, "within": case.within, "load_before": 0.26} | asdict(case)
            for part, case in (("a", slow), ("b", fast), ("b", missing))
        ],
    }
    (project / readme.BENCH).mkdir(parents=True)
    other = record | {"cases": [record["cases"][0] | {"part": "c"}], "dirty": False, "repeats": 1}
    for name, each in (("a_later_part", other), ("parts", record)):
        (project / readme.BENCH / f"{name}.json").write_text(json.dumps(each))
    lines = readme.bench(project, page).splitlines()
    assert lines[2:] == [
        r"| a | ours \| theirs | 1.23 x | ≤ 1 x | not within | 0.3 | x86_64, 4 logical CPUs |",
        "| b | decoder | 3.21 x | ≥ 3 x | within | 0.3 | x86_64, 4 logical CPUs |",
        "| b | vLLM | not run | ≥ 1 x | — | 0.3 | x86_64, 4 logical CPUs |",
        r"| c | ours \| theirs | 1.23 x | ≤ 1 x | not within | 0.3 | x86_64, 4 logical CPUs |",
        "",
        "Part a, b: medians of at most 5 timings; started 2026-01-02T03:04:05+00:00, at commit 0123456789ab (changed).",
        "",
        "Part c: medians of at most 1 timings; started 2026-01-02T03:04:05+00:00, at commit 0123456789ab.",
    ]


def test_a_methods_seconds_stand_in_one_line_whatever_they_were_compared_with(project: Path) -> None:
    page = project / "docs" / "speed.md"
    assert readme.trees(project, page) == "not run\n"
    runs = {
        "grpo_exact": {"rows": [4.0, 6.0, 5.0], "trees": [2.0], "flattened": [8.0]},
        "rtpo": {"rows": [3.0], "trees": [1.5]},
    }
    cases = [
        {"part": "d", "records": {"task": "toy", "method": method, "seconds": seconds}}
        for method, seconds in runs.items()
        for _ in set(seconds) - {"trees"}
    ]
    (project / readme.BENCH).mkdir(parents=True)
    (project / readme.BENCH / "trees.json").write_text(json.dumps({"cases": [{"part": "a"}, *cases]}))
    assert readme.trees(project, page).splitlines()[2:] == [
        "| toy | `grpo_exact` | 8 | 5 | 2 | 0.40 | 0.25 |",
        "| toy | `rtpo` | — | 3 | 1.5 | 0.50 | — |",
    ]


def test_the_quickstart_ends_as_its_parts_do(tmp_path: Path) -> None:
    configs = quickstart.configurations([f"results={tmp_path}"])
    with pytest.raises(DataError, match="holds no complete run"):
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
def test_every_field_has_a_value_and_a_meaning(name: str) -> None:
    shown = table(readme.BLOCKS["fields"](PROJECT, DOCS / "method" / f"{name}.md"), "Field", "Value")
    assert set(shown) == {field.name for field in fields(load_algorithm(name).config)}
    assert "<!-- generated:fields -->" in (DOCS / "method" / f"{name}.md").read_text(encoding="utf-8")


def test_every_algorithm_is_in_the_comparison() -> None:
    compared = [name for name in algorithms() if not load_algorithm(name).is_rung]
    text = readme.methods(PROJECT, DOCS / "method" / "methods.md")
    shown = table(text, "Algorithm", "Rollout plan")
    assert [re.sub(r"\[`(\w+)`\].*", r"\1", name) for name in shown] == compared
    for name, plan in zip(compared, shown.values(), strict=True):
        assert plan == load_algorithm(name).plan
        assert load_algorithm(name).credit in text


@pytest.mark.parametrize("name", ["anchored", "grpo", "seeupo", "arpo", "tree_grpo"])
def test_configurations_of_a_method_are_named_on_its_page(name: str) -> None:
    text = (DOCS / "method" / f"{name}.md").read_text(encoding="utf-8")
    found = [path.stem for path in (PROJECT / "configs" / "algorithm").glob(f"{name}_*.yaml")]
    assert found
    assert [label for label in found if f"`{label}`" not in text] == []


def test_toy_settings_are_those_of_a_toy_run() -> None:
    stated = table((DOCS / "run" / "toy.md").read_text(encoding="utf-8"), "Field", "Toy math")
    assert len(stated) == len(readme.PAPER)
    assert stated == {path: in_yaml(at(compose_config(), path)) for path in stated}


def at(config: RunConfig, path: str) -> Any:
    value: Any = config.as_dict()
    for key in path.split("."):
        value = value[key]
    return value


def in_yaml(value: Any) -> str:
    return yaml.safe_dump(value).removesuffix("...\n").strip()


@pytest.mark.parametrize("page", readme.pages(PROJECT), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8"))
    local = [(page.parent / path, anchor) for path, anchor in links if "://" not in path]
    assert [path for path, _ in local if not path.exists()] == []
    for path, anchor in local:
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {heading.lower().replace(" ", "-").replace("`", "") for heading in headings}
