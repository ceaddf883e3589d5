"""Names that other frameworks give to what this one configures, to translate a command line or a script.

`FOREIGN_KEYS` has one row per framework and name; an unknown key of the command line is answered from it.
"""

from __future__ import annotations

from typing import NamedTuple

FRAMEWORKS = ("Stable-Baselines3", "CleanRL", "Stoix", "rejax", "PureJaxRL", "Ajax", "DreamerV3")
SB3, CLEANRL, STOIX, REJAX, PUREJAXRL, AJAX, DREAMERV3 = FRAMEWORKS


class ForeignKey(NamedTuple):
    """One name of another framework."""

    framework: str  # one of `FRAMEWORKS`; empty for what people type without one in mind
    theirs: str  # their name, in the case that they write it in
    # Keys, or overrides such as `logger=silent`; of several keys, a system has those of its algorithm. Empty.
    ours: tuple[str, ...]
    note: str = ""  # what differs in unit or meaning; may be empty

    @property
    def remark(self) -> str:
        """The note as the end of a sentence; empty without one."""
        return f" ({self.note})" if self.note else ""

    @property
    def is_switch(self) -> bool:
        """Whether ours are overrides, which a true value of theirs selects."""
        return self.ours not in ((), ENVIRONMENT, SYSTEM, NETWORK) and all("=" in name for name in self.ours)


_LEARNING_RATES = ("system.actor_lr", "system.critic_lr", "system.q_lr", "system.alpha_lr", "system.lr")
_LAYERS = ("network.actor_network.pre_torso.layer_sizes", "network.critic_network.pre_torso.layer_sizes")
_ACTIVATIONS = ("network.actor_network.pre_torso.activation", "network.critic_network.pre_torso.activation")
ENVIRONMENT = ("env=gymnax/cartpole",)
SYSTEM = ("system=ppo/ff_ppo",)
NETWORK = ("network=mlp",)
_SCENARIO = "suite and environment, see stoix-like list envs"
_SYSTEMS = "see stoix-like list systems"
_RECURRENT = "recurrent systems are named rec_…; the cell: network=rnn"
_BATCH = ("system.total_batch_size", "system.num_minibatches")
_BATCH_NOTE = "with replay: over all devices; on-policy: their number, rollout_length × total_num_envs / batch size"
_STEPS_PER_ENV = "steps per environment between two updates"
_N_STEPS = f"{_STEPS_PER_ENV}; with replay, theirs is system.n_step: rewards per target"
_WARMUP = "random steps per environment, so their number divided by arch.total_num_envs"
_TRAINING_INTERVAL = f"{_STEPS_PER_ENV}, so their number divided by arch.total_num_envs"
_TARGET_PERIOD = (
    "gradient steps between copies; theirs counts environment steps: × epochs / (rollout_length × total_num_envs)"
)
_BUDGET = "environment steps: updates × rollout_length × total_num_envs"
_EVERY = "the number of evaluations, at even intervals"
_RUN_DIR = "the directory of one run; of several, hydra.sweep.dir"
_SIZES = "network=dreamer_xs, _s, _m and _l set all sizes"
_CHANNELS = f"times 1, 2, 3, … in its convolutions, theirs times 2, 3, 4 and 4; {_SIZES}"
_WIDTHS = f"a list of widths; {_SIZES}"
_SOFTPLUS = "log(1 + exp(theirs)), which from 3 on is about theirs"
_HALF_RANGE = "in units of half the action range, as SB3's and CleanRL's; rejax's divided by it"
_MINIBATCH = ("system.standardize_advantages=minibatch",)

# Their names, our keys, a note.
_ROWS: dict[str, tuple[tuple[str, tuple[str, ...], str], ...]] = {
    SB3: (
        ("policy", NETWORK, "the action space selects the head: see stoix-like list networks"),
        ("net_arch", _LAYERS, ""),
        ("activation_fn", _ACTIVATIONS, ""),
        ("env", ENVIRONMENT, _SCENARIO),
        ("n_envs", ("arch.total_num_envs",), "over all devices"),
        ("total_timesteps", ("arch.total_timesteps",), ""),
        ("seed", ("arch.seed",), ""),
        ("learning_rate", _LEARNING_RATES, ""),
        ("lr_schedule", ("system.decay_learning_rates=true",), "linear, to zero over the run"),
        ("n_steps", ("system.rollout_length",), _N_STEPS),
        ("n_epochs", ("system.epochs",), ""),
        ("batch_size", _BATCH, _BATCH_NOTE),
        ("ent_coef=auto", ("system.autotune=true",), ""),
        ("clip_range", ("system.clip_eps",), ""),
        ("clip_range_vf", ("system.clip_value",), "true or false; the range is clip_eps"),
        ("normalize_advantage", _MINIBATCH, ""),
        ("use_sde", ("network=mlp_gsde",), "and system.sde_sample_freq"),
        ("norm_obs", ("system.normalize_observations",), ""),
        ("norm_reward", ("system.normalize_rewards",), ""),
        ("buffer_size", ("system.total_buffer_size",), "over all environments"),
        ("learning_starts", ("system.warmup_steps",), _WARMUP),
        ("train_freq", ("system.rollout_length",), _STEPS_PER_ENV),
        ("gradient_steps", ("system.epochs",), "gradient steps per update"),
        ("optimize_memory_usage", ("system.store_next_observation=false",), ""),
        ("target_update_interval", ("system.target_update_period",), _TARGET_PERIOD),
        ("exploration_initial_eps", ("system.initial_epsilon",), ""),
        ("exploration_final_eps", ("system.training_epsilon",), ""),
        ("action_noise", ("system.exploration_noise",), _HALF_RANGE),
        ("policy_delay", ("system.policy_frequency",), ""),
        ("target_policy_noise", ("system.policy_noise",), _HALF_RANGE),
        ("target_noise_clip", ("system.noise_clip",), _HALF_RANGE),
        ("target_entropy", ("system.target_entropy_scale",), "times minus one nat per action dimension"),
        ("n_critics", ("system.num_critics", "system.num_target_critics"), "of SAC both, or targets draw two critics"),
        ("n_quantiles", ("system.num_quantiles",), ""),
        ("top_quantiles_to_drop_per_net", ("system.num_dropped_quantiles",), ""),
        ("eval_freq", ("arch.num_evaluation",), _EVERY),
        ("n_eval_episodes", ("arch.num_eval_episodes",), ""),
        ("tensorboard_log", ("logger=tensorboard",), "its files are in the run directory, hydra.run.dir"),
        ("verbose", ("logger.console.enabled=true",), "on by default; 0: logger=silent"),
        ("device", ("arch.num_devices",), "jax uses accelerators by itself; JAX_PLATFORMS=cpu does not"),
    ),
    CLEANRL: (
        ("env_id", ENVIRONMENT, _SCENARIO),
        ("exp_name", ("hydra.run.dir",), "the run directory"),
        ("num_envs", ("arch.total_num_envs",), "over all devices"),
        ("num_steps", ("system.rollout_length",), _STEPS_PER_ENV),
        ("total_timesteps", ("arch.total_timesteps",), ""),
        ("seed", ("arch.seed",), ""),
        ("learning_rate", _LEARNING_RATES, ""),
        ("anneal_lr", ("system.decay_learning_rates",), "linear, to zero over the run"),
        ("update_epochs", ("system.epochs",), ""),
        ("batch_size", _BATCH, _BATCH_NOTE),
        ("minibatch_size", ("system.num_minibatches",), _BATCH_NOTE),
        ("num_iterations", ("arch.total_timesteps",), _BUDGET),
        ("norm_adv", _MINIBATCH, ""),
        ("clip_coef", ("system.clip_eps",), ""),
        ("clip_vloss", ("system.clip_value",), ""),
        ("policy_lr", ("system.actor_lr",), ""),
        ("exploration_noise", ("system.exploration_noise",), _HALF_RANGE),
        ("alpha", ("system.ent_coef",), "SAC: with system.autotune=false"),
        ("policy_frequency", ("system.policy_frequency",), "of TD3; SAC: 1, since theirs repeats the policy's steps"),
        ("buffer_size", ("system.total_buffer_size",), "over all environments"),
        ("learning_starts", ("system.warmup_steps",), _WARMUP),
        ("train_frequency", ("system.rollout_length",), _STEPS_PER_ENV),
        ("target_network_frequency", ("system.target_update_period",), _TARGET_PERIOD),
        ("start_e", ("system.initial_epsilon",), ""),
        ("end_e", ("system.training_epsilon",), ""),
        ("n_atoms", ("system.num_atoms",), ""),
        ("v_min", ("system.vmin",), ""),
        ("v_max", ("system.vmax",), ""),
        ("track", ("logger=wandb",), ""),
        ("wandb_project_name", ("logger.wandb.project",), ""),
        ("wandb_entity", ("logger.wandb.entity",), ""),
        ("capture_video", ("logger.video.every_evals",), "evaluations between two videos"),
        ("save_model", ("checkpoint.keep",), "checkpoints are written by default"),
        ("torch_deterministic", ("arch.deterministic",), ""),
        ("cuda", ("arch.num_devices",), "jax uses accelerators by itself; JAX_PLATFORMS=cpu does not"),
    ),
    STOIX: (
        ("arch.num_updates", ("arch.total_timesteps",), _BUDGET),
        ("arch.num_envs", ("arch.total_num_envs",), "over all devices"),
        ("arch.evaluator_device_id", (), "the devices of the learner share evaluations"),
        ("arch.actor.log_frequency", ("logger.every_updates",), ""),
        ("arch.learner.log_frequency", ("logger.every_updates",), ""),
        ("logger.use_console", ("logger.console.enabled",), ""),
        ("logger.use_tb", ("logger.tensorboard.enabled",), ""),
        ("logger.use_wandb", ("logger.wandb.enabled",), ""),
        ("logger.use_neptune", ("logger=wandb",), "or a custom logger"),
        ("logger.use_json", ("hydra.run.dir",), "metrics.jsonl is always written there; it is not marl-eval's form"),
        ("logger.kwargs.json_path", ("hydra.run.dir",), "metrics.jsonl is always written there"),
        ("logger.kwargs.upload_json_data", (), "metrics.jsonl stays in the run directory; W&B receives its records"),
        ("logger.kwargs.detailed_logging", (), "means, deviations, minima and maxima of returns are always recorded"),
        ("logger.kwargs.project", ("logger.wandb.project",), ""),
        ("logger.kwargs.tags", ("logger.wandb.tags",), ""),
        ("logger.kwargs.group_tag", ("logger.wandb.group",), ""),
        ("logger.loggers.wandb.project", ("logger.wandb.project",), ""),
        ("logger.loggers.wandb.tags", ("logger.wandb.tags",), ""),
        ("logger.loggers.wandb.group_tag", ("logger.wandb.group",), ""),
        ("logger.base_exp_path", ("hydra.run.dir",), _RUN_DIR),
        ("logger.checkpointing.save_model", ("checkpoint.keep",), "checkpoints are written by default"),
        ("logger.checkpointing.load_model", ("arch.init_from",), "its parameters; arch.resume_from continues the run"),
        ("logger.checkpointing.load_args.checkpoint_uid", ("arch.init_from",), "a run directory"),
        ("logger.checkpointing.save_args.max_to_keep", ("checkpoint.keep",), ""),
        ("logger.checkpointing.save_args.save_interval_steps", ("checkpoint.every_evals",), "in evaluations"),
        ("system.system_name", SYSTEM, _SYSTEMS),
        (
            "env.solved_return_threshold",
            (),
            "Stoix logs the share of episodes that reach it; arch.stop_at_return stops a run instead",
        ),
        ("env.eval_metric", (), "the metric of evaluations, sweeps and tune is the return"),
        ("env.observation_attribute", (), "of a dictionary: +observations=… or a network's feature_name"),
        (
            "system.num_minibatches",
            (),
            "this system takes one gradient step per update, or, with a replay buffer, system.epochs of them",
        ),
        (
            "system.reward_eps",
            (),
            "system.normalize_rewards divides by a running deviation of the return, and subtracts no mean",
        ),
        ("system.max_abs_reward", ("env.reward_clip",), "in training alone"),
        ("system.obs_norm_warmup_steps", (), "statistics of observations begin with those of the first update"),
        ("system.actor_target_period", (), "V-MPO acts with, and is bounded by, the policy before each update"),
        (
            "system.stochastic_policy_eval",
            (),
            "values of successors are always means over system.num_samples actions of the target policy",
        ),
        ("system.use_online_policy_to_bootstrap", (), "values of successors are always those of the target policy"),
        ("system.root_exploration_fraction", ("system.dirichlet_fraction",), "SPO adds no noise to its prior"),
        ("system.root_exploration_dirichlet_alpha", ("system.dirichlet_alpha",), "SPO adds no noise to its prior"),
        (
            "system.root_exploration_dirichlet_fraction",
            ("system.dirichlet_fraction",),
            "SPO adds no noise to its prior",
        ),
        ("system.n_steps", ("system.n_step",), ""),
        (
            "system.sample_sequence_length",
            ("system.sequence_length", "system.unroll_steps", "system.n_step"),
            "R2D2: sequence_length, less burn_in_length, which Stoix counts, too; MuZero: unroll_steps, those that its"
            " model is unrolled for, and n_step more are sampled; MPO and AWR: n_step, one less, as Stoix does not"
            " learn from the last step; others: sequence_length",
        ),
        ("system.period", ("system.sequence_period",), ""),
        ("system.search_method_kwargs", ("system.value_scale",), "and other keys of their own, see the guide"),
        ("system.critic_num_atoms", ("system.num_atoms",), "of rewards and values"),
        ("system.critic_vmin", ("system.vmin",), "of rewards and values, on the scale that they are learned on"),
        ("system.critic_vmax", ("system.vmax",), "of rewards and values, on the scale that they are learned on"),
        ("system.reward_num_atoms", ("system.num_atoms",), "of rewards and values"),
        ("system.reward_vmin", ("system.vmin",), "of rewards and values, on the scale that they are learned on"),
        ("system.reward_vmax", ("system.vmax",), "of rewards and values, on the scale that they are learned on"),
        ("system.search_gae_lambda", ("system.search_lambda",), ""),
        ("system.resampling.mode", ("system.resampling",), ""),
        ("system.resampling.period", ("system.resample_period",), ""),
        ("system.resampling.ess_threshold", ("system.resample_threshold",), "a share of the particles"),
        ("system.init_log_temperature", ("system.init_temperature",), f"{_SOFTPLUS}, in units of scaled reward"),
        ("system.init_log_alpha", ("system.init_alpha",), _SOFTPLUS),
        ("system.init_log_alpha_mean", ("system.init_alpha_mean",), _SOFTPLUS),
        ("system.init_log_alpha_stddev", ("system.init_alpha_stddev",), _SOFTPLUS),
        (
            "system.per_dim_constraining",
            ("system.epsilon_mean", "system.epsilon_stddev"),
            "per action dimension always",
        ),
        ("system.search_gamma", ("system.gamma",), "the same in searches and targets; theirs is 1 in searches"),
        ("system.temperature.fixed_temperature", ("system.init_temperature",), "where it begins; it is learned"),
        ("system.temperature.adaptive", ("system.init_temperature",), "where it begins; it is learned always"),
        ("system.use_retrace", ("system.retrace_lambda",), "always Retrace"),
        (
            "system.n_step_for_sequence_bootstrap",
            ("system.n_step", "system.gae_lambda"),
            "of MPO n_step, the longest returns; of V-MPO gae_lambda, the lambda of returns",
        ),
        (
            "system.use_n_step_bootstrap",
            ("system.gae_lambda", "system.retrace_lambda"),
            "always returns of this lambda",
        ),
        ("system.disco_hyperparams.pi_cost", ("system.policy_coef",), ""),
        ("system.disco_hyperparams.y_cost", ("system.y_coef",), ""),
        ("system.disco_hyperparams.z_cost", ("system.z_coef",), ""),
        ("system.disco_hyperparams.aux_policy_cost", ("system.next_policy_coef",), ""),
        ("system.disco_hyperparams.value_cost", ("system.value_coef",), ""),
        ("system.disco_hyperparams.value_fn_td_lambda", ("system.retrace_lambda",), ""),
        ("system.disco_hyperparams.target_params_coeff", ("system.tau",), "1 - target_params_coeff"),
        ("system.disco_rule.num_bins", ("system.num_atoms",), ""),
        ("system.disco_rule.max_abs_value", ("system.vmin", "system.vmax"), ""),
        ("system.disco_rule.moving_average_decay", ("system.moments_decay",), ""),
        ("system.kl_penalty_coef", ("system.kl_coef",), "adapted by default; constant with system.adapt_kl_coef=false"),
        ("system.recurrent_chunk_size", ("system.sequence_length",), ""),
        ("system.vtrace_lambda", ("system.gae_lambda",), ""),
        ("system.decay_epsilon", ("system.exploration_fraction",), "0: a constant epsilon, training_epsilon"),
        ("system.regularizer_coeff", ("system.regularizer_weight",), "twice theirs: Stoix halves the squared error"),
        ("system.priority_eta", ("system.max_priority_weight",), ""),
        ("system.num_actor_steps", ("system.epochs",), "of AWR: gradient steps of both networks"),
        ("system.num_critic_steps", ("system.epochs",), "of AWR: gradient steps of both networks"),
        ("system.weight_clip", ("system.weight_max",), ""),
        ("system.action_penalization", ("system.action_penalty",), ""),
        ("system.search_method=muzero", ("system.search_method=puct",), ""),
        (
            "rnn_layer",
            ("system=ppo/rec_ppo",),
            "only recurrent systems, named rec_…, take an rnn_layer",
        ),
    ),
    REJAX: (
        ("agent_kwargs", _LAYERS, ""),
        ("hidden_layer_sizes", _LAYERS, ""),
        ("num_envs", ("arch.total_num_envs",), "over all devices"),
        ("num_steps", ("system.rollout_length",), _STEPS_PER_ENV),
        ("num_epochs", ("system.epochs",), ""),
        ("learning_rate", _LEARNING_RATES, ""),
        ("eval_freq", ("arch.num_evaluation",), _EVERY),
        (
            "skip_initial_evaluation",
            (),
            "the evaluation before the first update is always recorded, and never the best",
        ),
        ("exploration_noise", ("system.exploration_noise",), _HALF_RANGE),
        ("target_noise", ("system.policy_noise",), _HALF_RANGE),
        ("target_noise_clip", ("system.noise_clip",), _HALF_RANGE),
        ("policy_delay", ("system.policy_frequency",), ""),
        ("fill_buffer", ("system.warmup_steps",), _WARMUP),
        ("buffer_size", ("system.total_buffer_size",), "over all environments"),
        ("batch_size", _BATCH, _BATCH_NOTE),
        ("polyak", ("system.tau",), "1 - polyak"),
        ("target_update_freq", ("system.target_update_period",), _TARGET_PERIOD),
        ("target_entropy_ratio", ("system.target_entropy_scale",), ""),
        ("eps_start", ("system.initial_epsilon",), ""),
        ("eps_end", ("system.training_epsilon",), ""),
        ("ddqn", ("system=q_learning/ff_ddqn",), ""),
    ),
    PUREJAXRL: (
        ("ENV_NAME", ENVIRONMENT, _SCENARIO),
        ("LR", _LEARNING_RATES, ""),
        ("ANNEAL_LR", ("system.decay_learning_rates",), "linear, to zero over the run"),
        ("LR_LINEAR_DECAY", ("system.decay_learning_rates",), ""),
        ("NUM_ENVS", ("arch.total_num_envs",), "over all devices"),
        ("NUM_STEPS", ("system.rollout_length",), _STEPS_PER_ENV),
        ("NUM_SEEDS", ("arch.population.size",), ""),
        ("WANDB_MODE", ("logger=wandb",), ""),
        ("NUM_UPDATES", ("arch.total_timesteps",), _BUDGET),
        ("TOTAL_TIMESTEPS", ("arch.total_timesteps",), ""),
        ("UPDATE_EPOCHS", ("system.epochs",), ""),
        ("MINIBATCH_SIZE", ("system.num_minibatches",), _BATCH_NOTE),
        ("ACTIVATION", _ACTIVATIONS, ""),
        ("NORMALIZE_ENV", ("system.normalize_observations", "system.normalize_rewards"), ""),
        ("BUFFER_SIZE", ("system.total_buffer_size",), "over all environments"),
        ("BUFFER_BATCH_SIZE", ("system.total_batch_size",), ""),
        ("EPSILON_START", ("system.initial_epsilon",), ""),
        ("EPSILON_FINISH", ("system.training_epsilon",), ""),
        ("EPSILON_ANNEAL_TIME", ("system.exploration_fraction",), "a fraction of the run"),
        ("TARGET_UPDATE_INTERVAL", ("system.target_update_period",), _TARGET_PERIOD),
        ("LEARNING_STARTS", ("system.warmup_steps",), _WARMUP),
        ("TRAINING_INTERVAL", ("system.rollout_length",), _TRAINING_INTERVAL),
    ),
    AJAX: (
        ("env_id", ENVIRONMENT, _SCENARIO),
        ("n_envs", ("arch.total_num_envs",), "over all devices"),
        ("n_timesteps", ("arch.total_timesteps",), ""),
        ("actor_learning_rate", ("system.actor_lr",), ""),
        ("critic_learning_rate", ("system.critic_lr", "system.q_lr"), ""),
        ("alpha_learning_rate", ("system.alpha_lr",), ""),
        ("actor_architecture", _LAYERS[:1], "and pre_torso.activation"),
        ("critic_architecture", _LAYERS[1:], "and pre_torso.activation"),
        ("lstm_hidden_size", ("system=ppo/rec_ppo",), _RECURRENT),
        ("n_steps", ("system.rollout_length",), _STEPS_PER_ENV),
        ("n_epochs", ("system.epochs",), ""),
        ("batch_size", _BATCH, _BATCH_NOTE),
        ("clip_range", ("system.clip_eps",), ""),
        ("normalize_advantage", _MINIBATCH, ""),
        ("buffer_size", ("system.total_buffer_size",), "over all environments"),
        ("learning_starts", ("system.warmup_steps",), _WARMUP),
        ("alpha_init", ("system.init_alpha",), ""),
        ("target_entropy_per_dim", ("system.target_entropy_scale",), "minus this number"),
        ("fixed_alpha", ("system.autotune=false",), "and system.ent_coef"),
    ),
    DREAMERV3: (
        ("task", ENVIRONMENT, _SCENARIO),
        ("logdir", ("hydra.run.dir",), "the run directory"),
        ("run.envs", ("arch.total_num_envs",), "over all devices"),
        ("run.steps", ("arch.total_timesteps",), ""),
        ("run.eval_eps", ("arch.num_eval_episodes",), ""),
        ("jax.compute_dtype", ("arch.compute_dtype",), ""),
        ("configs", ("network=dreamer_s",), "dreamer_xs, _s, _m, _l: 1, 12, 25 and 50 million parameters"),
        ("size1m", ("network=dreamer_xs",), ""),
        ("size12m", ("network=dreamer_s",), ""),
        ("size25m", ("network=dreamer_m",), ""),
        ("size50m", ("network=dreamer_l",), ""),
        ("replay.online", ("system.online_sequences",), "the number of them in each batch"),
        ("batch_size", ("system.total_batch_size",), "over all devices"),
        ("batch_length", ("system.sequence_length",), ""),
        ("replay_context", ("system.latent_period",), "sequences start from stored latents, one every period steps"),
        ("horizon", ("system.gamma",), "1 - 1 / horizon"),
        ("imag_length", ("system.imagination_length",), ""),
        ("agent.opt.lr", ("system.lr",), ""),
        ("agent.opt.agc", ("system.max_relative_norm",), ""),
        ("agent.opt.beta1", ("system.momentum_decay",), ""),
        ("agent.opt.beta2", ("system.rms_decay",), ""),
        ("agent.opt.warmup", ("system.lr_warmup_steps",), ""),
        ("imag_loss.lam", ("system.gae_lambda",), ""),
        ("imag_loss.actent", ("system.ent_coef",), ""),
        ("imag_loss.slowreg", ("system.slow_critic_coef",), ""),
        ("loss_scales.rec", ("system.reconstruction_coef",), ""),
        ("loss_scales.rew", ("system.reward_coef",), ""),
        ("loss_scales.dyn", ("system.dynamics_coef",), ""),
        ("loss_scales.rep", ("system.representation_coef",), ""),
        ("loss_scales.con", ("system.continue_coef",), ""),
        ("loss_scales.repval", ("system.replay_vf_coef",), ""),
        ("rssm.unimix", ("system.uniform_mix",), ""),
        ("rssm.deter", ("network.world_model.dynamics.deterministic_size",), _SIZES),
        ("rssm.hidden", ("network.world_model.dynamics.hidden_size",), _SIZES),
        ("rssm.stoch", ("network.world_model.dynamics.num_latents",), _SIZES),
        ("rssm.classes", ("network.world_model.dynamics.num_classes",), _SIZES),
        ("rssm.blocks", ("network.world_model.dynamics.num_blocks",), _SIZES),
        ("enc.simple.depth", ("network.world_model.encoder.channels",), _CHANNELS),
        ("enc.simple.units", ("network.world_model.encoder.units",), _SIZES),
        ("dec.simple.depth", ("network.world_model.decoder.channels",), _CHANNELS),
        ("dec.simple.units", ("network.world_model.decoder.units",), _SIZES),
        ("rewhead.units", ("network.reward_network.pre_torso.layer_sizes",), _WIDTHS),
        ("conhead.units", ("network.continue_network.pre_torso.layer_sizes",), _WIDTHS),
        ("policy.units", _LAYERS[:1], _WIDTHS),
        ("value.units", _LAYERS[1:], _WIDTHS),
        ("retnorm.perclo", ("system.return_percentile_low",), ""),
        ("retnorm.perchi", ("system.return_percentile_high",), ""),
    ),
}

# What people type without a framework in mind.
_COMMON = (
    ("algo", SYSTEM, _SYSTEMS),
    ("algorithm", SYSTEM, _SYSTEMS),
    ("agent", SYSTEM, _SYSTEMS),
    ("environment", ENVIRONMENT, _SCENARIO),
    ("env_name", ENVIRONMENT, _SCENARIO),
    ("gym_id", ENVIRONMENT, _SCENARIO),
    ("steps", ("arch.total_timesteps",), ""),
    ("timesteps", ("arch.total_timesteps",), ""),
    ("num_timesteps", ("arch.total_timesteps",), ""),
    ("total_steps", ("arch.total_timesteps",), ""),
    ("num_seeds", ("arch.population.size",), ""),
    ("n_seeds", ("arch.population.size",), ""),
    ("seeds", ("arch.population.size",), "a number; or -m arch.seed=0,1,2, one run each"),
    ("use_lstm", ("system=ppo/rec_ppo",), _RECURRENT),
    ("use_rnn", ("system=ppo/rec_ppo",), _RECURRENT),
    ("recurrent", ("system=ppo/rec_ppo",), _RECURRENT),
    ("wandb", ("logger=wandb",), ""),
    ("use_wandb", ("logger=wandb",), ""),
    ("tensorboard", ("logger=tensorboard",), ""),
    ("lr", _LEARNING_RATES, ""),
    ("entropy_coef", ("system.ent_coef",), ""),
    ("value_coef", ("system.vf_coef",), ""),
    ("hidden_sizes", _LAYERS, ""),
    ("hidden_size", _LAYERS, ""),
    ("hidden", _LAYERS, "a list of widths"),
    ("units", _LAYERS, "a list of widths"),
    ("depth", _LAYERS, "one width per layer"),
    ("log_dir", ("hydra.run.dir",), _RUN_DIR),
    ("output_dir", ("hydra.run.dir",), _RUN_DIR),
    ("save_dir", ("hydra.run.dir",), _RUN_DIR),
)

# Last parts of keys that say something else in another group.
AMBIGUOUS = frozenset({"hidden", "units", "depth"})

# What to write where one of these is false; where other rows write overrides, false is the default.
SWITCHED_OFF = {
    "ddqn": "system=q_learning/ff_dqn",
    "lr_schedule": "system.decay_learning_rates=false",
    "norm_adv": "system.standardize_advantages=false",
    "normalize_advantage": "system.standardize_advantages=false",
    "verbose": "logger=silent",
}

_ALL = (*_ROWS.items(), ("", _COMMON))
FOREIGN_KEYS = tuple(ForeignKey(framework, *row) for framework, rows in _ALL for row in rows)


def rows_of(name: str) -> list[ForeignKey]:
    """Return the rows of a name that other frameworks use, in any case."""
    return [row for row in FOREIGN_KEYS if row.theirs.lower() == name.lower()]


_SEVERAL = "with an environment of several agents, see stoix-like list envs"
_OFFLINE = "arch=offline system.data=FILE"
# Algorithms whose system has another name, or that are an option of one: their names, in lower case, and what to write.
ALGORITHMS = {
    "a3c": "system=vpg/ff_a2c",
    "alphazero": "system=search/ff_az",
    "calql": f"system=sac/ff_sac system.cql_coef=2.5 system.calibrated=true {_OFFLINE}",
    "cql": f"system=sac/ff_sac system.cql_coef=2.5 {_OFFLINE}",
    "dagger": "system=offline/bc system.teacher=RUN",
    "doubledqn": "system=q_learning/ff_ddqn",
    "gail": "system=ppo/ff_ppo system.intrinsic=gail system.reward_scale=1e-6 system.data=FILE",
    "ippo": f"system=ppo/ff_ppo {_SEVERAL}",
    "mappo": f"system=ppo/ff_ppo +observations=centralised +env.kwargs.world=true env.agent_ids=one_hot {_SEVERAL}",
    "muzero": "system=search/ff_mz",
    "qmix": f"system=q_learning/ff_pqn_vdn system.mixer=qmix {_SEVERAL}",
    "rebrac": (
        "system=ddpg/ff_td3 system.bc_coef=0.1 system.critic_bc_coef=0.01"
        f" network.q_network.pre_torso.use_layer_norm=true {_OFFLINE}"
    ),
    "redq": "+experiment=redq_hopper, or its keys of system=sac/ff_sac",
    "rlpd": "+experiment=rlpd_pendulum system.data=FILE",
    "rnd": "system=ppo/ff_ppo system.intrinsic=rnd",
    "sampledalphazero": "system=search/ff_sampled_az",
    "sampledmuzero": "system=search/ff_sampled_mz",
    "td3bc": f"system=ddpg/ff_td3 system.bc_coef=0.4 {_OFFLINE}, with 0.4 divided by the entries of an action",
    "vdn": f"system=q_learning/ff_pqn_vdn {_SEVERAL}",
}

# Choices of other frameworks, by our group and their name, of suites without the environment: what to write.
CHOICES = {
    ("network", "mlp_noisy_dueling_c51"): "mlp_rainbow",
    ("network", "mlp_td3"): "mlp_ddpg",
    ("network", "mlp_mpo_continuous"): "mlp_mpo",
    ("network", "mlp_resnet"): "mlp_simba",
    ("env", "debug"): "probe",
    ("env", "minigrid"): "xminigrid",
    ("env", "popjym"): "memory",
}
