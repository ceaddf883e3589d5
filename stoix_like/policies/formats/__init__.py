"""File formats of exported policies.

The module of a format has two functions: `encode(policy)` returns the content of a file, and `decode(content)` a
function from arrays `[B, ...]`, one for each of `Policy.argument_shapes`, and the data of a key to the results of
`Policy.act_on`.
"""
