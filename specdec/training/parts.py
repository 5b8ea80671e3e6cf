"""Where a training text lies: parquet parts in its folder; folders in it hold texts of their own."""

from pathlib import Path

PATTERN = "part-*.parquet"


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob(PATTERN))
