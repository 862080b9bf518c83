"""The documentation is in step with the code: generated blocks, metric keys, configuration fields, links."""

import re
from pathlib import Path
from typing import Any

from whole_runs import config_in, lines

from analysis.pages import __main__ as pages
from experiments.training import train
from rtpo.harness import diagnostics
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.config import PROJECT
from rtpo.run.stopping import StopRequest
from rtpo.types import GradeOutcome, StopReason, Termination, ToolOutcome

DOCS = PROJECT / "docs"
METRICS = (DOCS / "results" / "metrics.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """A page's part under a second-level heading."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def documented(title: str) -> set[str]:
    """The first cells of a section's first table."""
    (rows,) = re.findall(r"^\| Key \|.*\n\|[-| ]+\n((?:\|.*\n)+)", section(METRICS, title), re.MULTILINE)[:1]
    return {key for shown in re.findall(r"^\| `(\S+?)`", rows, re.MULTILINE) for key in expanded(shown)}


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
    assert sum(page.read_text(encoding="utf-8").count("<!-- generated:") for page in pages.pages()) >= 20
    assert pages.main(["--check"]) == 0


def test_every_key_of_a_runs_records_is_documented(tmp_path: Path, plain_trainer: None) -> None:
    """Of a small run of RTPO on the trainer in plain torch."""
    run = train(config_in(tmp_path, "budget.rollouts=60"), StopRequest())

    def keys(entries: list[dict[str, Any]], *nested: str) -> set[str]:
        return set().union(*(flat(entry, nested) for entry in entries))

    steps = lines(run.path, "steps.jsonl")
    for name in ("steps", "evaluations", "paths"):
        assert keys(lines(run.path, f"{name}.jsonl")) == documented(f"Lines of `{name}.jsonl`")
    samples = keys(lines(run.path, "rollouts.jsonl"), "turns", "trained")
    assert samples == documented("Lines of `rollouts.jsonl`")
    calls = [call for step in steps for call in step["rollout_calls"]]
    assert keys(calls) == documented("Entries of `rollout_calls`")
    updates = [update for step in steps for update in step["updates"]]
    assert keys(updates, "zero_advantage", "groups", "turn_tokens") == documented("Entries of `updates`")
    marked = set(re.findall(r"^\| `(\S+)` † \|", section(METRICS, "Entries of `updates`"), re.MULTILINE))
    assert set(diagnostics.empty_update()) == marked
    assert flat(Ledger(Budget(1)).as_dict(), ("budget", "tool_calls", "seconds")) == documented("Ledger")
    values = [kind.value for enum in (ToolOutcome, Termination, StopReason, GradeOutcome) for kind in enum]
    assert [value for value in values if f"`{value}`" not in section(METRICS, "Entries of `rollout_calls`")] == []
