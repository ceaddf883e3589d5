"""Compile our training program for an accelerator that is not in the machine; see `kernels.py`."""

import json
import os
import sys
from pathlib import Path

from stoix_like.lab.aot import plugins, targets

target = targets.find_target(sys.argv[1])
plugins.prepare(target)

from stoix_like.composition import compose_config  # noqa: E402
from stoix_like.config import parse_config  # noqa: E402
from stoix_like.lab.aot.topology import set_up_for  # noqa: E402
from stoix_like.run.programs.functions import run_programs  # noqa: E402

setup = set_up_for(parse_config(compose_config(sys.argv[2:])), target)
train = next(program for program in run_programs(setup) if program.name == "train")
compiled = train.function.lower(*train.args).compile()
steps = setup.plan.steps_per_update * setup.population.num_members
found = {
    "hlo": compiled.as_text(),
    "temporary": compiled.memory_analysis().temp_size_in_bytes,
    "steps": steps,
    "length": setup.config.system.rollout_length,
}
Path(os.environ["KERNELS_OUT"]).write_text(json.dumps(found))
