"""Systems for tasks with goals, on the Anakin architecture."""
