"""The driver's benchmark runs, at a tiny size, and counts what it says it counts."""

from experiments.speed.driver import driver_run


def test_the_drivers_benchmark_makes_a_record() -> None:
    record = driver_run(steps=12, prompts=2)
    # 4 trunks of 3 turns, and 2 siblings at each of their boundaries: 28 rollouts
    assert record["rollouts"] == 12 * 2 * 28
    assert len(record["memory_mib"]) == 12
    assert min(record["memory_mib"]) > 0
    assert record["seconds"] > 0
