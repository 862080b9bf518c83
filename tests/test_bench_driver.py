"""The driver's benchmark runs, at a tiny size, and counts what it says it counts."""

import math

from experiments.speed.driver import driver_cases, driver_run


def test_the_drivers_benchmark_makes_a_record_and_its_cases() -> None:
    record = driver_run(steps=12, prompts=2)
    # 4 trunks of 3 turns, and 2 siblings at each of their boundaries: 28 rollouts, 12 + 8 * (1 + 2 + 3) = 60 turns
    assert (record["steps"], record["prompts"], record["rollouts"]) == (12, 2, 12 * 2 * 28)
    # one held-out question of 3 turns is evaluated twice
    assert record["turns"] == 12 * 2 * 60 + 2 * 3
    seconds = [record[f"{part}{kind}_seconds"] for part in ("", "canned_") for kind in ("wall", "cpu")]
    assert all(math.isfinite(value) and value >= 0 for value in seconds)
    assert record["wall_seconds"] > 0
    assert len(record["memory_mib"]) == 12
    assert min(record["memory_mib"]) > 0
    assert record["grown_mib"] == record["memory_mib"][-1] - record["memory_mib"][0]

    time, memory = driver_cases([record, record | {"wall_seconds": 1e9, "grown_mib": 1e9}])
    assert time.name == "driver, wall-clock a rollout, 2 x 28 x 12 steps"
    assert math.isclose(time.value, 1e3 * (record["wall_seconds"] + 1e9) / 2 / record["rollouts"])
    assert time.records["runs"][0] == record
    assert (time.within, memory.within) == (False, False)
    assert [case.unit for case in (time, memory)] == ["ms", "MiB"]
