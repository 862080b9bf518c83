"""An element on two nodes, which are two slurmd on this machine."""

import subprocess
import tempfile

from experiments.rehearsal.shared import Rehearsed
from experiments.rehearsal.suite import run_tests
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT

SCRIPT = str(PROJECT / "tests" / "slurm_cluster.sh")
WHAT = "an element that trains on two nodes and is preempted, and its records beside those of one node"
TEST = "tests/test_slurm.py::test_one_element_on_two_nodes_preempted_by_the_same_on_one"
LEFT_OUT = "several machines, the network between them, NCCL, several GPUs: there are none here."
NO_PROGRAMS = 127
"""of bash, for a command that is not there"""


def rehearse() -> Rehearsed:
    """Raises MachineError where SLURM does not start, and where pytest ends without a report."""
    with tempfile.TemporaryDirectory() as folder:
        started = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True, check=False)
        try:  # munged may have started before a program that is not here was missed
            if started.returncode == NO_PROGRAMS:
                left = f"{WHAT}: SLURM is not here; as root: apt-get install munge slurm-wlm."
                return Rehearsed([], [left, LEFT_OUT])
            if started.returncode:
                raise MachineError(f"SLURM does not start: {' '.join(started.stderr.split())}")
            done = run_tests(WHAT, (TEST,), {"RTPO_SLURM": folder})
            return Rehearsed(done.lines, [*done.left_out, LEFT_OUT])
        finally:
            subprocess.run([SCRIPT, "stop", folder], capture_output=True, check=False)
