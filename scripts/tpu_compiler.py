"""Compile a program for a TPU that this machine does not have; print the result as JSON.

    .venv-tpu/bin/python scripts/tpu_compiler.py program.hlo v2

Run by `check_tpu_compile.py` in an environment with requirements-tpu.txt, which TensorFlow cannot share. JAX has no
public function that compiles HLO, so this uses internal ones of the pinned version.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any, Dict

# Without a TPU, several processes may load libtpu.
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
os.environ.setdefault("TPU_LOG_DIR", tempfile.gettempdir())

import numpy as np
from jax.experimental import topologies
from jaxlib import _jax, xla_client

# TPU -> arguments of the smallest topology. The two cores of a v4 chip work as one.
TOPOLOGIES: Dict[str, Dict[str, str]] = {
    "v2": {"topology_name": "v2:2x2"},
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    "v5e": {"topology_name": "v5e:2x2"},
}


def compile_for(tpu: str, module: bytes) -> Dict[str, Any]:
    """Compile a module for one core; return the bytes of device memory that it needs, or the error, and the time."""
    core = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[tpu]).devices[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[core.id]]))
    start = time.time()
    try:
        compiled = core.client.compile(module, _jax.DeviceList((core,)), options)
    except _jax.XlaRuntimeError as error:
        return {"error": str(error).splitlines()[0], "seconds": time.time() - start}
    memory = compiled.get_compiled_memory_stats()
    # Updated variables take the place of the old ones.
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    used += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return {"bytes": used, "seconds": time.time() - start}


def main() -> None:
    """Compile the program named on the command line."""
    path, tpu = sys.argv[1:]
    with open(path, "rb") as file:
        module = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(file.read()))
    print(json.dumps(compile_for(tpu, module.encode())))


if __name__ == "__main__":
    main()
