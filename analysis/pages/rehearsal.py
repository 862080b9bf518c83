"""The page of the rehearsal: what each part executed, from its record in results/rehearsal/."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.pages.markdown import ruled
from analysis.tables import NOT_RUN, number
from rtpo.run.records import json_object
from rtpo.run.run import duration

FOLDER = Path("results", "rehearsal")
PARTS = {
    "composition": "Every element composed, and each different setting to the last check before a GPU",
    "memory": "Memory of updates, by fake tensors",
    "vllm": "Whole runs with vLLM",
    "tokens": "Real tokens",
    "suite": "The test-suite under the GPU set",
    "nodes": "Two nodes",
}
"""a record each, or not run"""
KEYS = ("started", "wall_seconds", "commit", "dirty", "machine", "packages", "lines", "left_out")
NAMED = ("torch", "vllm", "verl", "transformers", "ray")
"""packages whose versions the page has"""
BY_PROFILE = ", profile="
"""in what a line executed: those of experiments by profiles are one table"""
ELEMENTS, SETTINGS = "Elements", "Settings not met above"
"""figures of such a line"""


def page(project: Path) -> str:
    files = {name: project / FOLDER / f"{name}.json" for name in PARTS}
    records = {name: json_object(file.read_bytes(), str(file), KEYS) for name, file in files.items() if file.exists()}
    executed = [record for record in records.values() if any(line["figures"] for line in record["lines"])]
    taken = duration(sum(record["wall_seconds"] for record in executed))
    missing = f"{NOT_RUN}\n"
    told = f"{len(executed)} of {len(PARTS)} parts, which took {taken} in all.\n" if records else missing
    parts = [f"### {title}\n\n{_part(records[name]) if name in records else missing}" for name, title in PARTS.items()]
    return "\n".join([told, *parts])


def _part(record: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {record['packages'][name]}" for name in NAMED)
    machine = record["machine"]
    about = (
        f"{record['started'][:10]}, in {duration(record['wall_seconds'])} on {machine['logical_cpus']} logical CPUs, "
        f"Python {machine['python']}: {versions}; commit {record['commit'][:12]}"
        f"{' (changed)' if record['dirty'] else ''}.\n"
    )
    tables = [_table(list(lines)) for _, lines in groupby(record["lines"], key=_form)]
    failed = [f"Failed: {line['what']}: {why}\n" for line in record["lines"] for why in line["failed"]]
    left_out = [f"Not executed: {why}\n" for why in record["left_out"]]
    return "\n".join([about, *tables, *failed, *left_out])


def _form(line: Mapping[str, Any]) -> tuple[bool, list[str]]:
    return BY_PROFILE in line["what"], list(line["figures"])


def _table(lines: list[Mapping[str, Any]]) -> str:
    if BY_PROFILE in lines[0]["what"]:
        return _experiments(lines)
    titles = list(lines[0]["figures"])
    rows = [[line["what"], *map(_cell, line["figures"].values()), str(len(line["failed"]))] for line in lines]
    return ruled(["Executed", *titles, "Failed"], rows)


def _experiments(lines: list[Mapping[str, Any]]) -> str:
    """A row an experiment and a column a profile, with the number of its elements, and rows of sums."""
    by_place = {tuple(line["what"].split(BY_PROFILE)): line for line in lines}
    experiments, profiles = (list(dict.fromkeys(names)) for names in zip(*by_place, strict=True))

    def cell(place: tuple[str, str]) -> str:
        if place not in by_place:
            return NOT_RUN
        line = by_place[place]
        failed = f", {len(line['failed'])} failed" if line["failed"] else ""
        return f"{number(line['figures'][ELEMENTS], 0)}{failed}"

    def sums(what: str, title: str) -> list[str]:
        values = [(profile, line["figures"][title]) for (_, profile), line in by_place.items()]
        return [what, *(number(sum(value for of, value in values if of == profile), 0) for profile in profiles)]

    rows = [[name, *(cell((name, profile)) for profile in profiles)] for name in experiments]
    ends = [sums("all", ELEMENTS), sums("of them, first of their settings, which went on", SETTINGS)]
    return ruled([f"{ELEMENTS} of", *profiles], [*rows, *ends])


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else number(value, 0 if isinstance(value, int) else 2)
