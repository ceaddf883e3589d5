"""Networks: input layers, torsos, heads, distributions, and whole networks built from them."""
