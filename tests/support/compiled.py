"""Calls as programs: outside of a program, every operation is lowered by itself."""

import functools

import jax


def run(function, *arguments, **keywords):
    """Call a function in one program, whose arguments are the arrays of jax; all else are constants."""
    leaves, structure = jax.tree.flatten((arguments, keywords))
    arrays = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}

    def call(arrays):
        arguments, keywords = jax.tree.unflatten(structure, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
        return function(*arguments, **keywords)

    return jax.jit(call)(arrays)


class Compiled:
    """A module or an object whose functions are called in programs."""

    def __init__(self, owner):
        self._owner = owner

    def __getattr__(self, name):
        attribute = getattr(self._owner, name)
        return functools.partial(run, attribute) if callable(attribute) else attribute
