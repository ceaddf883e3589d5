import os
import shutil

import jax
import numpy as np
import pytest
from jax.dtypes import issubdtype, prng_key

from stoix_like.storage import checkpoint
from support.set_ups import loop_of

RAINBOW = [
    *("system=q_learning/ff_rainbow", "env=gymnax/cartpole", "network.actor_network.action_head.layer_sizes=[4]"),
    *("network.actor_network.pre_torso.layer_sizes=[4]", "system.num_atoms=5", "system.rollout_length=4"),
    *("system.epochs=1", "system.warmup_steps=16", "system.total_buffer_size=128", "system.total_batch_size=16"),
    *("arch.total_num_envs=4", "arch.total_timesteps=96", "arch.num_evaluation=2", "arch.num_eval_episodes=2"),
    *("env.time_limit=9", "arch.absolute_metric=false", "arch.compile_cache=false", "checkpoint.every_evals=1"),
]
OLDER = "the older checkpoint"


def flip(place, bit):
    """Return a fault that flips a bit at a place of a file, where 0 is its start and 1 its end."""

    def change(content):
        position = int(place * (len(content) - 1))
        return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]

    return change


# New contents of a file from the old ones; None deletes it.
FAULTS = {
    "deleted": lambda content: None,
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-1],
    "zeroed": lambda content: bytes(len(content)),
    "a block zeroed": lambda content: content[: len(content) // 3] + bytes(16) + content[len(content) // 3 + 16 :],
    **{f"bit at {place}": flip(place, bit) for bit, place in enumerate((0, 0.25, 0.5, 0.75, 1))},
}


def words(leaf):
    return np.asarray(jax.random.key_data(leaf) if issubdtype(leaf.dtype, prng_key) else leaf)


def same(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(words(a), words(b), equal_nan=True) for a, b in pairs)


@pytest.mark.slow
def test_single_faults_lead_to_the_older_checkpoint_or_change_nothing(tmp_path, capsys):
    writer = checkpoint.Writer(tmp_path / "run", 2)
    loop = loop_of(*RAINBOW, writer=writer)
    loop.train()
    writer.close()
    older, newest = checkpoint.steps(tmp_path / "run")
    good = tmp_path / "run" / "checkpoints" / str(newest)
    targets = loop.targets()
    whole = checkpoint.read(tmp_path / "run", newest, targets)
    assert whole.items.keys() == {"shared", "rollout_state", "local", "best"}

    def read(run_dir, item, step):
        return OLDER if step == older else checkpoint.read(run_dir, step, {item: targets[item]})

    noticed, tried = set(), 0
    for file in sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file()):
        # A fault in an item concerns that item alone.
        item = file.parts[0] if file.parts[0] in targets else "local"
        content = (good / file).read_bytes()
        for fault, change in FAULTS.items():
            changed = change(content)
            if changed == content:
                continue
            # TensorStore caches the files of a path.
            run_dir = tmp_path / f"fault-{tried}"
            damaged = run_dir / "checkpoints" / str(newest)
            others = targets.keys() - {item}
            shutil.copytree(good, damaged, ignore=lambda path, names, others=others: others & {*names})
            (run_dir / "checkpoints" / str(older)).mkdir()
            os.unlink(damaged / file) if changed is None else (damaged / file).write_bytes(changed)
            found = checkpoint.newest_readable(run_dir, lambda step, r=run_dir, i=item: read(r, i, step))
            said = capsys.readouterr().err.splitlines()
            if found == OLDER:
                assert len(said) == 1, (file, fault, said)
                assert said[0].startswith(f"the checkpoint after {newest} steps is damaged: "), said
                noticed.add(item)
            else:
                assert not said, (file, fault, said)
                assert found.host_state == whole.host_state, (file, fault)
                assert same(found.items[item], whole.items[item]), (file, fault)
            tried += 1
            shutil.rmtree(run_dir)
    assert tried > 500
    assert noticed == targets.keys()
