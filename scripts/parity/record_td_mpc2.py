"""Record gradient steps of TD-MPC2: one of the model, then one of the policy, and the targets after them.

    pip install torch
    python scripts/parity/record_td_mpc2.py

The repository nicklashansen/tdmpc2 could not be had whole: the equations of `TDMPC2._update`, `update_pi`, `_td_target`
and `RunningScale`, and the layers `NormedLinear` and `SimNorm`, are transcribed here from its text, with the
`episodic` option of its later versions. All steps run in float64, on given weights, batches and noise, without
dropout. Adam's constant is 1e-3, with which the size of a gradient matters from the first step on. Set as in our code:
the deviation of the policy, softplus(s) + 0.001, its entropy, without the factor of its size, the constant of layer
normalisation, 1e-6, and the mask of what follows the end of an episode, which their batches do not contain. Which two
critics make a target is fixed, the first two.
"""

import copy

import numpy as np
import torch
from recording import round32, save
from torch import nn
from torch.nn import functional
from torch_recording import as_tensor, draw_weights, weights_of

OBSERVATION, ACTION, LATENT, WIDTH, BINS, CRITICS = 3, 2, 16, 16, 21, 5
STEPS, HORIZON, BATCH = 4, 3, 32
LOW, HIGH = -4.0, 4.0
GAMMA, RHO, TAU = 0.9, 0.5, 0.25
COEFS = {"consistency": 20.0, "reward": 0.1, "value": 0.1, "termination": 1.0, "entropy": 1e-2}
LR, ENCODER_SCALE, CLIP = 1e-2, 0.3, 2.0


class SimNorm(nn.Module):
    """Simplices of eight entries."""

    def forward(self, x):
        """Normalise."""
        return functional.softmax(x.reshape(*x.shape[:-1], -1, 8), dim=-1).reshape(x.shape)


def perceptron(inputs, outputs, last=None):
    """Return two layers with normalisation and Mish, and a linear one, or one with normalisation and `last`."""
    layers = []
    for size in (inputs, WIDTH):
        layers += [nn.Linear(size, WIDTH), nn.LayerNorm(WIDTH, eps=1e-6), nn.Mish()]
    layers.append(nn.Linear(WIDTH, outputs))
    return nn.Sequential(*layers, *(() if last is None else (nn.LayerNorm(outputs, eps=1e-6), last)))


def symlog(x):
    """Compress."""
    return torch.sign(x) * torch.log(1.0 + torch.abs(x))


def expectation(logits):
    """Return the value that logits stand for."""
    mean = (functional.softmax(logits, dim=-1) * torch.linspace(LOW, HIGH, BINS)).sum(-1)
    return torch.sign(mean) * (torch.exp(torch.abs(mean)) - 1.0)


def cross_entropy(logits, target):
    """Return the cross-entropies of two-hot targets."""
    place = (torch.clamp(symlog(target), LOW, HIGH) - LOW) / ((HIGH - LOW) / (BINS - 1))
    below = torch.clamp(torch.floor(place).long(), max=BINS - 2)
    share = (place - below)[..., None]
    probs = functional.one_hot(below, BINS) * (1.0 - share) + functional.one_hot(below + 1, BINS) * share
    return -(probs * functional.log_softmax(logits, dim=-1)).sum(-1)


class Agent(nn.Module):
    """The networks."""

    def __init__(self):
        super().__init__()
        joint = LATENT + ACTION
        self.encoder = perceptron(OBSERVATION, LATENT, SimNorm())
        self.dynamics = perceptron(joint, LATENT, SimNorm())
        self.reward = perceptron(joint, BINS)
        self.termination = perceptron(LATENT, 1)
        self.q = nn.ModuleList([perceptron(joint, BINS) for _ in range(CRITICS)])
        self.pi = perceptron(LATENT, 2 * ACTION)

    def act(self, latent, noise):
        """Return actions of the policy, and their log-probabilities."""
        mean, spread = self.pi(latent).chunk(2, dim=-1)
        std = functional.softplus(spread) + 1e-3
        log_prob = (-0.5 * noise**2 - torch.log(std) - 0.5 * np.log(2.0 * np.pi)).sum(-1)
        action = torch.tanh(mean + std * noise)
        return action, log_prob - torch.log(1.0 - action**2).sum(-1)


def two_values(critics, latent, action):
    """Return the values of two critics."""
    both = torch.cat([latent, action], dim=-1)
    return torch.stack([expectation(critic(both)) for critic in critics[:2]])


class Learner:
    """The agent, its optimisers and targets."""

    def __init__(self, agent):
        self.agent, self.target = agent, copy.deepcopy(agent.q)
        others = [p for part in (agent.dynamics, agent.reward, agent.termination, agent.q) for p in part.parameters()]
        groups = [{"params": agent.encoder.parameters(), "lr": LR * ENCODER_SCALE}, {"params": others}]
        self.model_params = [*agent.encoder.parameters(), *others]
        self.optim = torch.optim.Adam(groups, lr=LR, eps=1e-3)
        self.pi_optim = torch.optim.Adam(agent.pi.parameters(), lr=LR, eps=1e-3)
        self.scale = torch.ones(())

    def update(self, rows):
        """Take a step, and return the losses."""
        agent, observation, action = self.agent, rows["observation"], rows["action"]
        ended = rows["terminated"] | rows["truncated"]
        alive = torch.cumprod(torch.cat([torch.ones(1, BATCH), 1.0 - ended[:-1].double()]), dim=0)
        terminated = rows["terminated"].double()
        with torch.no_grad():
            successor = agent.encoder(rows["next_observation"])
            following, _ = agent.act(successor, rows["next_noise"])
            value = two_values(self.target, successor, following).min(0).values
            targets = rows["reward"] + GAMMA * (1.0 - terminated) * value
        latents = [agent.encoder(observation[0])]
        for step in range(HORIZON):
            latents.append(agent.dynamics(torch.cat([latents[-1], action[step]], dim=-1)))
        latents = torch.stack(latents)
        both, weight = torch.cat([latents[:-1], action], dim=-1), alive * (RHO ** torch.arange(HORIZON))[:, None]
        consistency = (weight * ((latents[1:] - successor) ** 2).mean(-1)).mean()
        reward = (weight * cross_entropy(agent.reward(both), rows["reward"])).mean()
        values = sum((weight * cross_entropy(critic(both), targets)).mean() for critic in agent.q) / CRITICS
        logits = agent.termination(latents[1:])[..., 0]
        ends = functional.binary_cross_entropy_with_logits(logits, terminated, reduction="none")
        termination = (alive * ends).mean()
        total = COEFS["consistency"] * consistency + COEFS["reward"] * reward
        total = total + COEFS["value"] * values + COEFS["termination"] * termination
        self.optim.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(self.model_params, CLIP)
        self.optim.step()
        pi_loss = self.update_pi(latents.detach(), torch.cat([torch.ones(1, BATCH), alive * (1.0 - terminated)]), rows)
        with torch.no_grad():
            for slow, online in zip(self.target.parameters(), agent.q.parameters(), strict=True):
                slow.lerp_(online, TAU)
        losses = {"consistency": consistency, "reward": reward, "value": values, "termination": termination}
        losses |= {"policy": pi_loss, "scale": self.scale}
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def update_pi(self, latents, alive, rows):
        """Take a step of the policy, and return its loss."""
        action, log_prob = self.agent.act(latents, rows["noise"])
        values = two_values(self.agent.q, latents, action).mean(0)
        low, high = np.percentile(values[0].detach().numpy(), [5.0, 95.0])
        self.scale = torch.lerp(self.scale, torch.as_tensor(max(high - low, 1.0)), 0.01)
        weight = alive * (RHO ** torch.arange(HORIZON + 1))[:, None]
        loss = -(weight * (values / self.scale - COEFS["entropy"] * log_prob)).mean()
        self.pi_optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.pi.parameters(), CLIP)
        self.pi_optim.step()
        return loss


def draw_batches(rng):
    """Draw the batches and the noise of all steps, `[STEPS, HORIZON, BATCH, ...]`."""
    size = (STEPS, HORIZON, BATCH)
    ends = rng.uniform(size=size)
    return round32(
        {
            "observation": rng.normal(size=(*size, OBSERVATION)),
            "next_observation": rng.normal(size=(*size, OBSERVATION)),
            "action": rng.uniform(-0.9, 0.9, (*size, ACTION)),
            "reward": 3.0 * rng.normal(size=size),
            "terminated": ends < 0.15,
            "truncated": ends > 0.85,
            "next_noise": rng.normal(size=(*size, ACTION)),
            "noise": rng.normal(size=(STEPS, HORIZON + 1, BATCH, ACTION)),
        }
    )


def draw_model(agent, rng):
    """Fill an agent with random weights, scales near one and values of various sizes; return them by name."""
    draw_weights(agent, rng)
    with torch.no_grad():
        for module in agent.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.copy_((1.0 + module.weight).float())
        for critic in agent.q:
            critic[-1].weight.mul_(4.0)
    return weights_of(agent)


def main():
    """Record four steps."""
    rng, agent = np.random.default_rng(12), Agent()
    initial, batches = draw_model(agent, rng), draw_batches(rng)
    learner, losses = Learner(agent), []
    for step in range(STEPS):
        losses.append(learner.update({name: as_tensor(value[step]) for name, value in batches.items()}))
    save(
        "td_mpc2",
        {
            "batch": batches,
            "initial": initial,
            "final": weights_of(agent),
            "target": weights_of(learner.target),
            "loss": {name: [step[name] for step in losses] for name in losses[0]},
        },
        ("torch",),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
