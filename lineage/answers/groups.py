"""Groups of items: which of them a report may show, and their tables."""

import re
from collections.abc import Sequence
from hashlib import blake2b

import pandas as pd

from lineage.errors import is_short_name

MAX_GROUPS = 100  # no scores by group if there are more
UNNAMED_GROUP = re.compile("sentence [0-9a-f]{16}")


def name_unnamed_group(tokens: Sequence[str]) -> str:
    """Return the name of the group of all items with the same tokens; it shows none of them."""
    digest = blake2b("\0".join(tokens).encode(), digest_size=8)
    return f"sentence {digest.hexdigest()}"


def can_report_groups(items: pd.DataFrame) -> bool:
    """Tell whether the groups are few and have short names, which the user has given."""
    names = items["group"].unique()
    if any(map(UNNAMED_GROUP.fullmatch, names)):
        return False
    return len(names) <= MAX_GROUPS and all(map(is_short_name, names))


def split_by_group(items: pd.DataFrame, *, fold: int | None) -> list[tuple[str, pd.DataFrame]]:
    """Return all items, followed by the items of each group if scores by group can be reported.

    In cross-validation the groups only keep items in one fold.
    """
    groups: list[tuple[str, pd.DataFrame]] = [("all", items)]
    if fold is None and items["group"].nunique() > 1 and can_report_groups(items):
        for name, group_items in items.groupby("group", sort=True):
            groups.append((str(name), group_items))
    return groups
