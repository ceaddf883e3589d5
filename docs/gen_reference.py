"""Generate the reference and configuration pages; run by mkdocs."""

import ast
from pathlib import Path

import mkdocs_gen_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "stoix_like"


def public_modules() -> dict[tuple[str, ...], str]:
    """Map the name of each public module, split and without the package, to its page below `reference/`."""
    pages = {}
    for source in (ROOT / PACKAGE).rglob("*.py"):
        parts = source.relative_to(ROOT / PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        parts = parts[:-1] if is_package else parts
        if not any(part.startswith("_") for part in parts):
            page = "/".join(parts) or PACKAGE
            pages[parts] = f"{page}/index.md" if is_package and parts else f"{page}.md"
    return dict(sorted(pages.items()))


def first_line(parts: tuple[str, ...]) -> str:
    """Return the first line of a module's docstring."""
    path = ROOT.joinpath(PACKAGE, *parts)
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text("utf-8"))) or "").partition("\n")[0]


def contents(pages: dict[tuple[str, ...], str], package: tuple[str, ...]) -> str:
    """List links to the modules directly below a package, relative to its page."""
    below = [parts for parts in pages if parts and parts[:-1] == package]
    links = [f"[{parts[-1]}]({'/'.join(Path(pages[parts]).parts[len(package) :])})" for parts in below]
    return "".join(f"- {link}: {first_line(parts)}\n" for link, parts in zip(links, below, strict=True))


def write_reference() -> None:
    """Write one page per module, and append a list of the modules to `reference/index.md`, which is written by hand."""
    pages = public_modules()
    nav = mkdocs_gen_files.Nav()
    for parts, page in pages.items():
        name = ".".join((PACKAGE, *parts))
        nav[parts or (PACKAGE,)] = page
        text = f"# {'.'.join(parts) or PACKAGE}\n\n::: {name}\n"
        if parts and (below := contents(pages, parts)):
            text += f"\n## Modules\n\n{below}"
        with mkdocs_gen_files.open(f"reference/{page}", "w") as file:
            file.write(text)
    with mkdocs_gen_files.open("reference/index.md", "a") as file:
        file.write(f"\n## Modules\n\n- [{PACKAGE}]({pages[()]}): {first_line(())}\n{contents(pages, ())}")
    with mkdocs_gen_files.open("reference/SUMMARY.txt", "w") as file:
        file.writelines(["* [Reference](index.md)\n", *nav.build_literate_nav()])


def shown(source: Path) -> str:
    """Return a yaml file as a fenced block."""
    return f"```yaml\n{source.read_text('utf-8').strip()}\n```\n"


def write_configuration() -> None:
    """Write one page per group of `configs`, with its files verbatim."""
    configs = ROOT / "configs"
    groups = sorted(path.name for path in configs.iterdir() if path.is_dir())
    nav = mkdocs_gen_files.Nav()
    for group in groups:
        nav[group] = f"{group}.md"
        with mkdocs_gen_files.open(f"configuration/{group}.md", "w") as file:
            file.write(f"# Configuration: {group}\n\nThe files of `configs/{group}`, each under its name.\n")
            for source in sorted((configs / group).rglob("*.yaml"), key=lambda path: path.with_suffix("")):
                name = source.relative_to(configs / group).with_suffix("").as_posix()
                file.write(f"\n## {name}\n\n{shown(source)}")
    with mkdocs_gen_files.open("configuration/index.md", "w") as file:
        file.write("# Configuration\n\nThe primary file, `configs/config.yaml`:\n\n")
        file.write(f"{shown(configs / 'config.yaml')}\nThe groups:\n\n")
        file.writelines(f"- [{group}]({group}.md)\n" for group in groups)
    with mkdocs_gen_files.open("configuration/SUMMARY.txt", "w") as file:
        file.writelines(["* [Configuration](index.md)\n", *nav.build_literate_nav()])


write_reference()
write_configuration()
