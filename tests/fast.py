"""Which files of tests the edit loop runs (`make test-fast`)."""

from pathlib import Path

FOLDERS = ("core", "harness", "methods")
BESIDE = ("test_records", "test_tabular", "test_toy_knowledge", "test_toy_keys", "test_toy_math", "test_toy_walk")
"""files of other folders"""
SLOW = ("test_boxes", "test_crashes", "test_tree_kernels")


def is_fast(file: Path) -> bool:
    return file.stem in BESIDE or (file.parent.name in FOLDERS and file.stem not in SLOW)
