"""The paper's training and evaluation sets, brought to files of one shape (docs/run/data.md)."""
