"""Forms of the same computations that accelerators run faster."""
