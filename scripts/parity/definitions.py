"""Definitions of single files of a repository, without what these files import."""

import ast
import linecache
from pathlib import Path


def load(path, names, namespace):
    """Execute the functions and classes of a file that have these names.

    Args:
        path: the file.
        names: names of its functions and classes, in the order of their definitions; functions may be nested ones.
        namespace: what they use; receives them.

    Returns:
        The namespace.

    Raises:
        ValueError: the file lacks a name.
    """
    source = Path(path).read_text()
    # What inspects its own source, such as ninjax, finds it.
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    found = {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}")
    for name in names:
        exec(compile(ast.Module([found[name]], type_ignores=[]), str(path), "exec"), namespace)
    return namespace
