"""Networks: inputs, torsos, heads, distributions, and whole networks of them."""
