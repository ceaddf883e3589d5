"""Pages of the site as markdown: a file beside each, their list `llms.txt`, and `llms-full.txt`; a hook of mkdocs.

Source of the form: https://llmstxt.org.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ("Reference", "Configuration")  # sections of which only the first page is listed


def in_order(page: Any) -> Iterator[Any]:
    """Yield a page and those after it in the navigation."""
    while page is not None:
        yield page
        page = page.next_page


def source(directive: re.Match[str]) -> str:
    """Return the code of a module that a page of the reference documents."""
    path = ROOT / directive[1].replace(".", "/")
    return f"````python\n{(path / '__init__.py' if path.is_dir() else path.with_suffix('.py')).read_text('utf-8')}````"


def on_env(env: Any, *, config: Any, files: Any) -> None:
    """Write the files, once all pages have been read."""
    site, sections, full = Path(config.site_dir), dict[str, list[str]](), []
    for page in in_order(files.get_file_from_path("index.md").page):
        path, text = page.file.src_uri, re.sub(r"^::: (\S+)$", source, page.markdown, flags=re.MULTILINE)
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
        title = page.ancestors[-1].title if page.ancestors else "Overview"
        listed = sections.setdefault(title, [])
        if title in GENERATED and listed:
            continue
        headings = [item.title for first in page.toc.items[:1] for item in first.children]
        listed.append(f"- [{page.title}]({path}){': ' if headings else ''}{', '.join(headings)}\n")
        if title not in GENERATED:
            full.append(text)
    lists = "".join(f"\n## {title}\n\n{''.join(lines)}" for title, lines in sections.items())
    (site / "llms.txt").write_text(f"# {config.site_name}\n\n> {config.site_description}\n{lists}", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")
