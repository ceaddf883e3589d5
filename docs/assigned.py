"""Document functions that modules assign instead of defining them: means of losses, and entry points; run by griffe."""

import ast
import re
from typing import Any

import griffe

from stoix_like.systems.algorithm import EntryPoints

ENTRY_POINTS = dict(re.findall(r"^ +(\w+): (.+)$", EntryPoints.__doc__ or "", re.MULTILINE))


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
