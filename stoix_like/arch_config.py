"""Typed configuration of the group `arch`: budget, environments, devices, evaluation and members of a run."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Range, at_least, between, one_of

MAX_MEMBERS = 1_000_000
MAX_EVALUATIONS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PBTConfig:
    """Population-based training."""

    every_evals: Annotated[int | None, at_least(1)] = None  # evaluations between two selections; None: none are made
    # Share of the members that are replaced, and of those that they copy.
    fraction: Annotated[float, Range(0.0, 0.5, without_low=True)] = 0.25
    # Relative change of the values of a copy; of a uniform range, in units of its width.
    perturbation: Annotated[float, Range(0.0, 1.0, without_high=True)] = 0.2
    # Probability that a value of a copy is drawn again instead.
    resample_probability: Annotated[float, between(0.0, 1.0)] = 0.25
    bounds: dict[str, Any] | None = None  # ranges by name; by default from `hyperparams`


@dataclass(frozen=True)
class PopulationConfig:
    """Members trained in parallel in one program."""

    # Number of members; member `i` has the seed `arch.seed + i`, unless `is_paired`.
    size: Annotated[int, between(1, MAX_MEMBERS)]
    hyperparams: dict[str, Any] | None  # by name, a list of per-member values or a distribution to draw them from
    mode: Annotated[str, one_of("zip", "grid")]  # how lists are combined
    seeds: Annotated[int, between(1, MAX_MEMBERS)]  # members per hyperparameter setting
    pbt: PBTConfig = PBTConfig()  # population-based training
    paired: bool | None = None  # whether every hyperparameter setting has the same seeds; None: in grids, without `pbt`

    @property
    def evolves(self) -> bool:
        """True if members are replaced between evaluations."""
        return self.pbt.every_evals is not None

    @property
    def is_paired(self) -> bool:
        """True if every hyperparameter setting has the same seeds."""
        if not self.hyperparams:
            return False
        if self.paired is None:
            return self.mode == "grid" and not self.evolves
        return self.paired


@dataclass(frozen=True, kw_only=True)
class ArchConfig(ABC):
    """Budget, environments and evaluation of a run; subclasses add the devices."""

    step_unit: ClassVar[str] = "env steps"  # what `total_timesteps` counts
    # Whether the last parameters count as the best ones.
    keeps_last: ClassVar[bool] = False

    architecture_name: str  # a key of `ARCHITECTURES`
    # jax uses the lowest 32 bits of a seed only: larger seeds would repeat smaller ones.
    seed: Annotated[int, between(0, 2**32 - 1)]  # seed of everything random in the run
    # Larger counts would not survive JSON: its numbers are doubles.
    # Budget in environment steps, over all environments; never exceeded.
    total_timesteps: Annotated[int, between(1, 2**53)]
    total_num_envs: Annotated[int, between(1, INT32_MAX)]  # number of environments, over all devices and update batches
    update_batch_size: Annotated[int, between(1, INT32_MAX)]  # vectorised shards per device
    # The host keeps one record per evaluation.
    # Number of evaluations after the one at step 0, at even intervals.
    num_evaluation: Annotated[int, between(1, MAX_EVALUATIONS)]
    num_eval_episodes: Annotated[int, between(1, INT32_MAX)]  # complete episodes per evaluation
    # Steps after which an evaluation episode is truncated; its return up to there counts.
    max_eval_steps: Annotated[int, between(1, INT32_MAX)]
    evaluation_greedy: bool  # evaluate the mode of the policy instead of sampling
    absolute_metric: bool  # evaluate the best parameters once more at the end, on ten times as many episodes
    on_nan: Annotated[str, one_of("stop", "ignore")]  # what to do when a metric or a parameter becomes non-finite
    compile_cache: bool  # cache compiled programs on disk for the next start
    # Directory or address of a run to resume, instead of starting a new one.
    resume_from: str | None
    population: PopulationConfig  # members trained in parallel
    init_from: str | None = None  # directory or address of a run; a new run starts from its parameters and statistics
    # Mean episode return of an evaluation at which the run stops; None spends the whole budget.
    stop_at_return: float | None = None
    profile: bool = False  # trace one update and one evaluation, and measure the time of rollouts on their own
    # Dtype in which torsos compute; parameters, heads and losses are float32.
    compute_dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    fused_networks: bool = False  # let GPUs compute each small perceptron, with its head, in one kernel
    deterministic: bool = False  # let GPUs compute the same bits in every run, which other devices do anyway
    # Precision of products of matrices; None: jax's default, but highest in suites of physics.
    matmul_precision: Annotated[str | None, one_of("default", "high", "highest")] = None

    @property
    def torso_dtype(self) -> str | None:
        """The dtype in which torsos compute; None: the parameters' dtype."""
        return None if self.compute_dtype == "float32" else self.compute_dtype

    @property
    @abstractmethod
    def devices_needed(self) -> int | None:
        """The number of devices to start jax with; None: every accelerator, or one device on a CPU."""


@dataclass(frozen=True)
class DistributedConfig:
    """One process of a run on several hosts."""

    coordinator: str  # address and port of the first process, which all others can reach
    num_processes: Annotated[int, between(1, INT32_MAX)]  # number of processes
    process_id: Annotated[int, between(0, INT32_MAX)]  # number of this process, from 0

    def __str__(self) -> str:
        """Return the address of the coordinator and the number of the process."""
        return f"{self.coordinator} (process {self.process_id} of {self.num_processes})"

    def __post_init__(self) -> None:
        key = "arch.distributed"
        if not re.fullmatch(r".+:[0-9]{1,5}", self.coordinator):
            raise ConfigError(f"{key}.coordinator={self.coordinator} must be an address and a port: use host0:9911")
        if self.process_id >= self.num_processes:
            raise ConfigError(
                f"{key}.process_id={self.process_id} must be less than {key}.num_processes={self.num_processes}:"
                f" number the processes from 0 to {self.num_processes - 1}"
            )


@dataclass(frozen=True, kw_only=True)
class AnakinConfig(ArchConfig):
    """Anakin: environments and learning on the accelerator, in one program."""

    num_devices: Annotated[int | None, between(1, INT32_MAX)]  # number of devices, over all processes
    # Whether the run spans several processes: `auto` asks the cluster which ones; None: one process.
    distributed: Annotated[str, one_of("auto")] | DistributedConfig | None = None

    @property
    def devices_needed(self) -> int | None:
        if self.num_devices is None or not isinstance(self.distributed, DistributedConfig):
            return self.num_devices
        return -(-self.num_devices // self.distributed.num_processes)


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(AnakinConfig):
    """Offline: learning from recorded data; no environment is stepped but in evaluation."""

    step_unit: ClassVar[str] = "gradient steps"
    keeps_last: ClassVar[bool] = True


DeviceIds = tuple[Annotated[int, between(0, 1023)], ...]


@dataclass(frozen=True)
class ActorConfig:
    """The actors of Sebulba."""

    device_ids: DeviceIds  # indices of the devices that act, in the list of jax's devices
    actor_per_device: Annotated[int, between(1, 1024)]  # threads per device, each with its share of the environments


@dataclass(frozen=True)
class LearnerConfig:
    """The learner of Sebulba."""

    device_ids: DeviceIds  # indices of the devices that learn, in the list of jax's devices


@dataclass(frozen=True, kw_only=True)
class SebulbaConfig(ArchConfig):
    """Sebulba: threads that act in environments on the host, while a learner updates on its own devices."""

    actor: ActorConfig
    learner: LearnerConfig
    # Rollouts that each actor is ahead of the learner, so that the policy lag is this number of updates; 0: in turns.
    pipeline_queue_size: Annotated[int, between(0, 1024)]

    @property
    def devices_needed(self) -> int | None:
        return 1 + max((*self.actor.device_ids, *self.learner.device_ids), default=0)

    @property
    def num_actors(self) -> int:
        """The number of actors."""
        return len(self.actor.device_ids) * self.actor.actor_per_device


ARCHITECTURES: dict[str, type[ArchConfig]] = {
    "anakin": AnakinConfig,
    "offline": OfflineConfig,
    "sebulba": SebulbaConfig,
}


def step_unit(config: Mapping[str, Any]) -> str:
    """Return what the budget of a run counts."""
    return ARCHITECTURES.get(config.get("arch", {}).get("architecture_name"), ArchConfig).step_unit
