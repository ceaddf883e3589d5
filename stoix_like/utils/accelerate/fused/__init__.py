"""Small multilayer perceptrons as one kernel of a GPU for each pass, which keep activations on the chip."""
