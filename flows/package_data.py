"""Find the files that the package brings along: the graph, and ready-made studies."""

from pathlib import Path

PACKAGE_DATA_DIR = Path(__file__).parent / "data"  # where a wheel has them
CHECKOUT_DIR = Path(__file__).parent.parent


def package_file(name: str) -> Path:
    """Return the path of a file such as `dvc.yaml`, in an installed package or in a checkout."""
    installed = PACKAGE_DATA_DIR / name
    return installed if installed.exists() else CHECKOUT_DIR / name
