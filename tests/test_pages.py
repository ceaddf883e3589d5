import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def scripts(text):
    return re.findall(r"(?<![\w/])scripts/[\w./-]*\w", text)


def section(text, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def listed_extras(text):
    """Return the extras in the commands, the paragraph and the table of suites of a text like the README."""
    install = section(text, "Install")
    first, others = re.search(r"'\.\[([\w-]+)\]' +# or ([\w, -]+):", install).groups()
    paragraph = re.search(r"^Extras: (.*?)\. The package", install, re.MULTILINE | re.DOTALL)[1]
    cells = re.findall(r"^\| ([^|]*) \|", section(text, "Environments"), re.MULTILINE)
    suites = " ".join(cell for cell in cells if "in the core" not in cell)
    return {first, *others.split(", "), *re.findall(r"`([\w-]+)`", paragraph + suites)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_script_of_a_page_exists(page):
    assert [path for path in scripts(page.read_text()) if not (ROOT / path).exists()] == []


def test_scripts_are_found_in_a_page():
    text = "`scripts/results.py`, scripts/soak/soak.py. https://host/main/scripts/other.py, scripts/…, `scripts/smoke`"
    assert scripts(text) == ["scripts/results.py", "scripts/soak/soak.py", "scripts/smoke"]


def test_the_readme_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed_extras(README.read_text()) == set(project["optional-dependencies"])


def test_the_site_has_the_extras_of_the_page_that_it_executes():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = re.findall(r"pip install '\.\[(.*)\]'", (ROOT / "docs/guides/afternoon.md").read_text())
    ours = re.search(r"stoix_like\[(.*)\]", " ".join(extras["docs"]))[1]
    assert set(install.split(",")) <= set(ours.split(","))
