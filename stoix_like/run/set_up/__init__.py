"""The parts of a run, built and checked before anything compiles."""
