"""The paper's training and evaluation sets, in prepared files of one format (docs/run/data.md)."""
