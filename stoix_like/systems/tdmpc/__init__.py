"""Systems that plan in the latents of a learned model."""
