"""verl and vLLM as a GPU would see them, on a machine without one (experiments/rehearsal)."""
