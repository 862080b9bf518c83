"""What an experiment will cost, before it runs: `python experiments/plan.py experiment=main_table profile=a100x8`.

    --hardware NAME   the machine of the hours (rtpo/hardware.yaml); by default the profile's own
    --json            the plan as JSON, null for what is unknown
    --page            write the tables of docs/planning.md, for all experiments; --check: only compare them

Other arguments are overrides, as of experiments/train.py.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.command import Parser, command

from rtpo.config import PROJECT
from rtpo.errors import ConfigError
from rtpo.launch import experiments
from rtpo.planning import Plan, plan
from rtpo.planning_text import assumptions_text, calibration_text, machines, render, summary

PAGE = PROJECT / "docs" / "planning.md"
PROFILE = "a100x8"
BLOCK = re.compile(
    r"(?<=^<!-- plans: written by experiments/plan.py --page -->\n).*?(?=^<!-- end of plans -->$)",
    re.MULTILINE | re.DOTALL,
)
SERVER = ("task.settings.server.base_url=http://127.0.0.1:8000/v1", "task.settings.server.model=user")
STAND_INS = {"airline": SERVER, "airline_matched": SERVER}
"""what a run must be told and a plan does not depend on"""


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="experiment=NAME [OVERRIDE ...]")
    parser.add_argument("--hardware")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.page:
        write_page(PAGE, page_tables([paper_plan(name) for name in experiments()]), check=options.check)
        return
    name, overrides = _experiment(options.overrides)
    made = plan(name, overrides, options.hardware)
    print(json.dumps(made.as_dict(), indent=1) if options.json else render(made), end="\n" if options.json else "")


def _experiment(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment's name, and the other overrides. Raises ConfigError without exactly one name."""
    named = [one.removeprefix("experiment=") for one in overrides if one.startswith("experiment=")]
    if len(named) != 1:
        raise ConfigError(f"experiment=<name> is given {len(named)} times: give one of {', '.join(experiments())}.")
    return named[0], [one for one in overrides if not one.startswith("experiment=")]


def paper_plan(name: str) -> Plan:
    """An experiment at the paper's scale."""
    return plan(name, [f"profile={PROFILE}", *STAND_INS.get(name, ())])


def page_tables(plans: Sequence[Plan]) -> str:
    """The generated part of the page."""
    first = plans[0]
    assert first.calibration is not None
    known = {env: one for each in plans for env, one in each.episodes.items()}
    everything = Plan(**{**vars(first), "episodes": known})
    parts = [
        "## Calibration\n\n" + calibration_text(first.calibration),
        "## Assumptions\n\n" + assumptions_text(everything),
    ]
    parts += ["## Machines\n\n" + machines(plans), "## Experiments\n\nA range is low to high, middle."]
    parts += [f"### {each.experiment}\n\n{summary(each)}" for each in plans]
    return "\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts) + "\n"


def write_page(page: Path, tables: str, *, check: bool) -> None:
    """Put the tables between the page's marks. Raises ConfigError for a page without them, and, to check, for one that
    has others."""
    text = page.read_text(encoding="utf-8")
    if len(BLOCK.findall(text)) != 1:
        raise ConfigError(f"{page} has no marks for the plans' tables: restore them.")
    written = BLOCK.sub(lambda _: tables, text)
    if check and written != text:
        raise ConfigError(f"{page} is not what the plans give now: write it with experiments/plan.py --page.")
    if not check:
        page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
