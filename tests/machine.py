"""What some tests need of the machine, beyond the packages of Python: looked for before they run.

A test says so with the mark `needs` and names of PARTS; the mark nearest to it holds, so that one of `nothing` frees a
test from its file's. What is missing skips the test with the reason. Where the variable CI is set, it ends the test run
instead, before the first test. Run as a command, this prints the packages that are missing.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# the processes of a test run share the machine, and products of small models only lose by threads that wait for each
# other; it counts before torch is imported alone, and a run's own processes have what their profile says
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Part:
    """`packages` (of Debian and Ubuntu) bring the `programs`; then `trial` must succeed, and `remedy` is for where it
    does not."""

    programs: str = ""
    packages: str = ""
    trial: str = ":"
    remedy: str = ""

    @property
    def missing(self) -> list[str]:
        """Programs that are not here; SLURM's may lie where an ordinary user's path does not lead."""
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
        return [name for name in self.programs.split() if shutil.which(name, path=path) is None]

    @property
    def lack(self) -> str:
        """Why what needs this part cannot run, and what to do; empty where it can."""
        if self.missing:
            return f"no {', '.join(self.missing)} on this machine; as root: apt-get install -y {self.packages}"
        done = subprocess.run(["/bin/sh", "-c", self.trial], capture_output=True, text=True, check=False)
        return f"{self.remedy} ({' '.join(done.stderr.split())})" if done.returncode else ""


UV = Path(sys.executable).with_name("uv")
USER = "--unshare-user" if os.getuid() else ""
PARTS = {
    "bwrap": Part(
        "bwrap",
        "bubblewrap",
        f"bwrap {USER} --unshare-ipc --unshare-pid --unshare-net --unshare-uts --ro-bind / / true",
        "bwrap can make no namespaces here: docs/run/tools.md says what the machine must allow",
    ),
    "chromium": Part("chromium", "chromium"),
    "pdflatex": Part("pdflatex", "texlive-latex-base texlive-latex-recommended"),
    "ordinary user": Part(
        "unshare setpriv",
        "util-linux",
        ":" if USER else "unshare --mount true",
        "root may not mount here: give the container CAP_SYS_ADMIN",
    ),
    "nothing": Part(),
    "slurm": Part(
        "munged slurmctld slurmd sbatch pgrep",
        "munge slurm-wlm procps",
        '[ -n "$RTPO_SLURM" ] && SLURM_CONF=$RTPO_SLURM/slurm.conf sinfo',
        "no SLURM runs: tests/slurm_cluster.sh start FOLDER, and FOLDER in the variable RTPO_SLURM",
    ),
    "ss": Part("ss", "iproute2"),
    "package index": Part(
        trial=f"{UV} pip compile --quiet --no-deps requirements/submitit.txt",
        remedy="uv cannot ask a package index: make .venv/made installs it, and it needs a network",
    ),
}


def missing_packages() -> str:
    return " ".join(part.packages for part in PARTS.values() if part.missing)


def in_one_line(lacks: dict[str, str]) -> str:
    """What is missing, and the one command that brings it; empty where nothing is. lacks: of each part, its lack."""
    names = [name for name, lack in lacks.items() if lack]
    ways = [f"as root: apt-get install -y {missing_packages()}"] if missing_packages() else []
    ways += [lacks[name] for name in names if not PARTS[name].missing]
    return f"this machine lacks {', '.join(names)}; {'; '.join(ways)}" if names else ""


if __name__ == "__main__":
    print(missing_packages())
