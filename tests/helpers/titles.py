"""Titles of the paper's sections that configs/ and analysis/paper/settings.yaml name as sources of settings."""

TITLES = {"Algorithm 1", "Effect of Turn-Level Credit Assignment", "Experimental Setup", "Policy Drift Correction"}
TITLES |= {"Qwen3 Chat Template", "Rollout–Training Mismatch", "Stateful Tool-Agent Evaluation", "Training Details"}
TITLES |= {"Additional Findings for Hard-Search Scenarios", "Tool-Use Behavior on GSM8K"}
