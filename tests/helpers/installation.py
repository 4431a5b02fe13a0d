"""Build the wheel of this tree and install it into an environment of its own."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.helpers.checkout import ROOT


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder and return its path."""
    _run_pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


def install_wheel(wheel: Path, environment: Path) -> Path:
    """Make a virtual environment with the wheel, and return its folder.

    The requirements come from the environment that runs the tests.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    _run_pip("--python", str(environment / "bin/python"), "install", "--no-deps", str(wheel))
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # Python reads no .pth file of that folder, so an editable installation there stays out.
    (site_packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    return environment


def _run_pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
