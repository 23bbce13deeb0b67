"""dashboard-linter of Grafana, built once with Go into .cache/lint.

`python -m tests.deploy.linters` builds it, or says in one line why not; the checks then leave it out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = "github.com/grafana/dashboard-linter@latest"
PROGRAM = Path(__file__).parents[2] / ".cache" / "lint" / "dashboard-linter"


def main() -> None:
    if PROGRAM.exists():
        return
    if shutil.which("go") is None:
        print("dashboard-linter is left out: Go, which builds it, is not installed", file=sys.stderr)
        return
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(PROGRAM.parent)}
    done = subprocess.run(["go", "install", MODULE], env=environment, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        print(f"dashboard-linter is left out: it cannot be built: {''.join(reason)}", file=sys.stderr)


if __name__ == "__main__":
    main()
