"""Systems for tasks with goals."""
