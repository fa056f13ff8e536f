"""python -m sweeps.promote.maps: the page of the docs with all rows, on stdout."""

from __future__ import annotations

from sweeps.promote.maps.rows import reference_page

if __name__ == "__main__":
    print(reference_page(), end="")
