"""Constants of this area, from ``data/constants/simulate.toml``; the file has unit and basis of each.

The slowdowns of work side by side belong to a platform and stand in `collectives.constants`.
"""

from __future__ import annotations

from stepsight.constants import area

_FILE = area("simulate")
SETTLED_US = _FILE.number("SETTLED_US")
SETTLED_SHARE = _FILE.number("SETTLED_SHARE")
MOST_WALKS = _FILE.whole("MOST_WALKS")
SHARED_LINK = _FILE.number("SHARED_LINK")
FILLS_US = _FILE.number("FILLS_US")
