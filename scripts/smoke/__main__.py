"""The smoke test: `python scripts/smoke`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path += [str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "soak")]
    from tiny_runs import ENVIRONMENT

    # Before jax is imported; processes that start from here inherit it.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache" / "smoke"))
    os.environ |= {**ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": cache, "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
    from smoke import main

    main()
