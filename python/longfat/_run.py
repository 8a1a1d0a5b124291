"""The program, from Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def program():
    """The `longfat` program: what LONGFAT names, else the one installed beside this Python, else the first in PATH."""
    beside = Path(sys.executable).parent / "longfat"
    found = os.environ.get("LONGFAT") or (str(beside) if beside.is_file() else shutil.which("longfat"))
    if not found:
        raise FileNotFoundError("no program 'longfat': install it ('pip install .'), or name it in LONGFAT")
    return found


def run(spec, output, *arguments, backend="sim"):
    """Carries an experiment out (`longfat lab run`) and gives back the result's directory, for `longfat.open`.

    `arguments` are the command's: `"--set", "links.path.rate=10Mbit"`, `"--cell", "rtt=10ms"`. Runs that the directory holds
    are not made again. A missed expectation is no error here: it stands in the result.
    """
    command = [program(), "lab", "run", str(spec), "--backend", backend, "-o", str(output), *map(str, arguments)]
    made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with exit code {made.returncode}: {made.stderr.strip()}")
    return Path(output)
