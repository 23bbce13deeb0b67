"""axe-core, which finds faults of accessibility; `python -m tests.console.axe` fetches it into .cache."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "4.14.0"
FOLDER = Path(__file__).parent.parent.parent / ".cache" / "axe"
SCRIPT = FOLDER / f"axe-{VERSION}.min.js"


def fetch() -> None:
    """Fetch the package once. Raises CalledProcessError without npm's registry."""
    if SCRIPT.is_file():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"axe-core@{VERSION}"], cwd=folder, check=True)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            SCRIPT.write_bytes(member.read())


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"axe-core is missing, its tests are left out: {error}", file=sys.stderr)
