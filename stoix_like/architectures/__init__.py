"""Compiled programs for training and evaluation on a device mesh, without any file access.

From the outside in, the axes of a program are `population` (vmapped members, and a mesh axis) → `device` (mesh axis) →
`batch` (vmapped shards of one device) → environments. A shard is one update batch on one device:

    jit(shard_map(vmap(members)(vmap(train_shard, axis_name="batch"))), donate_argnums=0)

- `shared` is returned with `out_axes=None`. A system that forgets to average something is refused when the program is
  traced with several shards on a device; over devices alone, the copies would diverge without an error.
- A lone shard is squeezed inside the mapped function: a batch axis of one transposes the matrix products of weight
  gradients, which costs a CPU 6 % of a PPO update. Populations keep the name of the axis, and with replay buffers the
  axis itself: without it, XLA copies the buffers instead of writing in place.
- A device axis of size one is left out of `axes`, so that no collective is emitted for it.
- The training program writes its next state into the buffers of the last one. The host passes numbers and
  hyperparameters by explicit copies (`run.host.devices.placing`), so that whole runs pass under
  `jax.transfer_guard("disallow")`.
- The initialisation needs the names and shapes of an update's metrics, and training its equations: both call one jitted
  function, which is inlined; jax keeps its trace (`update.make_update`).
- `check_vma=False`, because jax 0.10–0.12 refuse collectives over a vmapped axis name inside a replication-checked
  `shard_map`.

`build` is called inside the vmap over members, on `dataclasses.replace(config, actor_lr=tracer, …)`, so no system knows
about populations. Members are sharded over devices, without any communication, or every member uses all devices,
see `run.host.plan.spread_members`. On CPUs, members are initialised one after the other: orthogonal initialisers use
batched QR decompositions, which deadlock when two devices of one CPU run them at once (seen with jax 0.10.2).
"""
