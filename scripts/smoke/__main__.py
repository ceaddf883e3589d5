"""The smoke test: `python scripts/smoke`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Before jax is imported: programs compile quickly, and are kept for the next time.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache" / "smoke")),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
}
sys.path += [str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "soak")]

if __name__ == "__main__":
    from smoke import main

    main()
