"""What several tests share; a module's first line says what it holds.

Environments: `custom_envs`, `countable_envs`, `masked`, `nested`, `privileged`, `randomized`, `mjx_hinge`,
`nim`; for gymnasium, `scripted`; for MuJoCo Playground, `menagerie`; `conformance`, what every adapter
must do.
Games of several agents with known answers: `games` and `parallel_game`.
Systems of this package, and what they declare: `systems`.
Systems without learning: `toys`, `keeper`, `recorder`, `dreamers`; `collector` for loggers.
Algorithms and programs: `algorithms`, `untrained`, `programs`, `platforms`, `replayed`, `disco`,
`bounded_policies`, `known_policies`.
Networks and losses: `accumulator`, `recurrent_references`, `every_head`, `every_loss`, `network_files`,
`torsos`; `parity`, the recorded outputs of other implementations.
Runs: `set_ups`, `toy_runs`, `trained_runs`, `on_policy_runs`, `off_policy_runs`, `offline_runs`, `searched_runs`,
`tiny_dreamer`, `small_tdmpc`, `resumed`, `comparisons`, `recorded`, `recorded_data`, `recordings`, `logged`,
`console_runs`, `killed_sweeps`; `commands`, runs in processes of their own.
Files and stores: `stored`, `store_runs`, `faulty_store`, `fake_hub`.
Tests themselves: `selections`, the cases that the quick ones run, `composed`, configurations from parts that are
composed once, `compiled`, calls as programs, and `lazily`, imports of suites.
"""
