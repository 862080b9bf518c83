"""Pages are filled from marks that survive, and a page that is not what the records give is found."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.pages.__main__ import main
from analysis.pages.fill import Content, fill
from rtpo.errors import DataError

FRAME = pd.DataFrame(
    {"Task": ["walk", "math"], "Kind": ["a | b", "c"], "Success": ["1.5 [1.0, 2.0]", "−3"], "p": ["0.2", "< 0.001"]}
)
BLOCK = "<!-- generated:study.table -->\n<!-- end -->\n"
SLOT = "It is <!--study.table:math | Success--><!--/--> there, with p <!--study.table:math | p--><!--/-->."


def source(name: str, *arguments: str) -> Content:
    """A study with a table and a text."""
    contents: dict[str, Content] = {"study.table": FRAME, "study.text": "A text.\n"}
    if name not in contents:
        raise DataError(f"{name}: no such table.")
    return contents[name]


def test_blocks_and_slots_are_filled_and_can_be_filled_again() -> None:
    once, marks = fill(f"before\n{BLOCK}{SLOT}\n", source)
    assert marks == 3
    assert "a \\| b" in once
    assert "<!--study.table:math | Success-->−3<!--/--> there" in once
    assert "with p <!--study.table:math | p-->< 0.001<!--/-->." in once
    assert fill(once, source) == (once, 3)
    changed = once.replace("−3", "−4").replace("walk", "run")
    assert fill(changed, source) == (once, 3)


def test_a_mark_that_cannot_be_filled_is_refused() -> None:
    slots = (("math", "chess"), ("| Success", "| Failure"), ("study.table", "study.text"), ("<!--/-->", ""))
    blocks = (("table", "weather"), (BLOCK, "<!-- end -->\n"), ("<!-- end -->\n", BLOCK))
    for text in (*(SLOT.replace(*slot) for slot in slots), *(BLOCK.replace(*block) for block in blocks)):
        with pytest.raises(DataError):
            fill(text, source)


def test_check_finds_a_changed_number_and_an_edited_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- generated:theory.theorems.compared theorem_2a_factor -->\n<!-- end -->\n"
        "<!--theory.theorems.compared theorem_2a_factor:G = 3 | Measured--><!--/-->\n"
    )
    assert main([str(page)]) == main(["--check", str(page)]) == 0
    text = page.read_text()
    for old, new in (("0.490 [0.465, 0.516]<!", "0.491 [0.465, 0.516]<!"), ("| 0.500", "| 0.501")):
        page.write_text(changed := text.replace(old, new))
        assert changed != text
        assert main(["--check", str(page)]) == 1
        assert str(page) in capsys.readouterr().err
        assert page.read_text() == changed
