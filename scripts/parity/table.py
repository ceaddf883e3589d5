"""Write the largest differences that the parity tests measure into the table of `docs/parity.md`.

pytest tests/parity -m slow -s > differences.txt
python scripts/parity/table.py differences.txt --into docs/parity.md
"""

import argparse
import re
import sys
from pathlib import Path

# "parity: name of a row: quantity: 1.2e-07".
MEASURED = re.compile(r"parity: ([^:]+): .*?([\d.]+e[+-]\d+)$", re.MULTILINE)
COLUMN = 4


def largest(text):
    """Return the largest difference of each row by its name."""
    rows = {}
    for name, difference in MEASURED.findall(text):
        rows[name] = max(rows.get(name, 0.0), float(difference))
    return rows


def fill(page, rows):
    """Return a page with the differences in the rows of its table that start with their names.

    Raises:
        ValueError: a name has no row.
    """
    lines, left = page.splitlines(keepends=True), dict(rows)
    for number, line in enumerate(lines):
        cells = line.split("|")
        if len(cells) > COLUMN and (name := cells[1].strip()) in left:
            difference = left.pop(name)
            cells[COLUMN] = f" {difference:.0e} ".replace("e-0", "e-") if difference else " 0 "
            lines[number] = "|".join(cells)
    if left:
        raise ValueError(f"the table has no row for {', '.join(sorted(left))}")
    return "".join(lines)


def main():
    """Read the output of the tests, and print the differences or fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="output of the tests")
    parser.add_argument("--into", type=Path, help="the page; without it, the differences are printed")
    arguments = parser.parse_args()
    rows = largest(arguments.output.read_text())
    if arguments.into is None:
        sys.stdout.writelines(f"{difference:.1e}  {name}\n" for name, difference in rows.items())
    else:
        arguments.into.write_text(fill(arguments.into.read_text(), rows))


if __name__ == "__main__":
    main()
