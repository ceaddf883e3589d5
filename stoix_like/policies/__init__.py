"""Trained policies as functions, and their files; `load` reads them from runs.

A policy is a function from observations to actions in the environment's own units. `export` writes that function in one
of `formats` (StableHLO, ONNX, arrays for numpy) and compares the file with the policy; `contract` describes it in JSON.
ONNX has no random numbers of jax: dead code is removed from the traced policy, and the mode comes from
`System.inspect`. The arrays for numpy follow from the flax modules that a call of the policy passes through.
"""
