"""Document what has no docstring of its own: functions that modules assign, and fields of classes; run by griffe."""

import ast
import functools
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import griffe

from stoix_like.systems.algorithm import EntryPoints

ENTRY_POINTS = dict(re.findall(r"^ +(\w+): .+  # (.+)$", inspect.getsource(EntryPoints), re.MULTILINE))


@functools.cache
def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


class Assigned(griffe.Extension):
    """Describes these functions in the modules that griffe has read."""

    def on_module_members(self, *, node: Any, mod: griffe.Module, **kwargs: Any) -> None:
        """Describe those of one module."""
        del kwargs
        for statement in getattr(node, "body", ()):
            match statement:
                case ast.Assign([ast.Name(name)], ast.Call(ast.Name("mean_of"), [ast.Name(losses)])):
                    loss = griffe.Function(name, parameters=mod.functions[losses].parameters, lineno=statement.lineno)
                    loss.returns = 'Float[Array, ""]'
                    loss.docstring = griffe.Docstring(f"Compute the mean over the batch of `{losses}`.", parent=loss)
                    mod.set_member(name, loss)
                case ast.Assign([ast.Tuple(targets)], ast.Call(ast.Name("entry_points"))):
                    for name in [target.id for target in targets]:
                        function = griffe.Attribute(name, lineno=statement.lineno)
                        function.docstring = griffe.Docstring(ENTRY_POINTS[name], parent=function)
                        mod.set_member(name, function)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Describe a field by the comment behind it, or by the one above it."""
        del kwargs
        if not isinstance(node, ast.AnnAssign) or node.end_lineno is None or attr.docstring is not None:
            return
        lines = _lines(str(attr.filepath))
        above = list(itertools.takewhile(lambda line: line.strip().startswith("#"), lines[node.lineno - 2 :: -1]))
        comment = lines[node.end_lineno - 1].partition("  # ")[2]
        if text := comment or " ".join(line.strip("# ") for line in reversed(above)):
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:].rstrip(".") + ".", parent=attr)
