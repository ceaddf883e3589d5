"""Weights, gradients and noise of modules in PyTorch."""

import contextlib

import numpy as np
import torch
from recording import random_weights

torch.set_default_dtype(torch.float64)


def draw_weights(module, rng):
    """Fill a module with random weights, rounded to float32, and return them by name."""
    weights = random_weights(rng, {name: tuple(value.shape) for name, value in module.named_parameters()})
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.as_tensor(weights[name]))
    return weights


def weights_of(module):
    """Return parameters and buffers of a module by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.state_dict().items()}


def adam_means(module, optimizer):
    """Return by name Adam's running means of the gradients of a module."""
    states = optimizer.state
    return {
        name: states[value]["exp_avg"].numpy().copy() for name, value in module.named_parameters() if value in states
    }


@contextlib.contextmanager
def noise(draws):
    """Let normal distributions and `Tensor.normal_` draw the given standard normal arrays, in this order."""
    queue = [torch.as_tensor(draw) for draw in draws]
    normal, rsample, in_place = torch.distributions.Normal, torch.distributions.Normal.rsample, torch.Tensor.normal_

    def draw_sample(self, sample_shape=()):
        return self.loc + self.scale * queue.pop(0)

    def draw_in_place(self, mean=0.0, std=1.0, *, generator=None):
        return self.copy_(mean + std * queue.pop(0))

    normal.rsample, torch.Tensor.normal_ = draw_sample, draw_in_place
    try:
        yield
    finally:
        normal.rsample, torch.Tensor.normal_ = rsample, in_place
    if queue:
        raise RuntimeError(f"{len(queue)} draws are left")


def as_tensor(array):
    """Return an array as a tensor, floats in float64."""
    array = np.asarray(array)
    return torch.as_tensor(array.astype(np.float64) if array.dtype.kind == "f" else array)
