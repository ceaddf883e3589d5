"""Systems whose environments run on the accelerator."""
