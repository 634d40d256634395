"""Compiles the training step with the fused attention for an H100 or A100 that is not here: what
its kernels need.

    pip install --constraint constraints.txt --editable '.[gpu-aot]'
                                                              best in an environment of its own
    python benchmarks/gpu_compile.py                          XLNet-Large, 16 rows, in one or two
                                                              minutes
    python benchmarks/gpu_compile.py --tiny --card=a100       two small layers, to try it; without
                                                              the extra it lowers the kernels alone
    python benchmarks/gpu_compile.py --json --config.train.batch_size=32
                                     --config.model.attention=xla
    python benchmarks/gpu_compile.py --documents              rows of one, four and five documents;
                                                              no relative positions; a window

For each kernel: the registers of a thread and the bytes that it spills, by ptxas; the threads and
the shared memory of a block, by XLA; the instructions of its loop over tiles for one score, in PTX
and in the card's own code (SASS, by nvdisasm). A loop inside, whose length depends on data, counts
once. Spills cost loads and stores of local memory. Nothing is executed.

`--documents` compiles the attention of rows of several documents, T=2048 and 341 targets, and of
rows of one text. The figures are the instructions in SASS for a score, times the scores that the
kernels of both streams compute for one row and head. `plain` is one text without relative
positions, `window` the same with the keys of a layer with a window of 128.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
NEAR = 64
"""Largest distance of a visible key in a layer with a window."""
PACKAGES = "jax_cuda12_plugin", "nvidia"
# A label, a branch and an instruction.
PTX = r"(\$\w+):", r"bra\S*\s+(\$\w+);", r"\s+(@!?%p\d+ )?[a-z].*;"
SASS = r"(\.L_\w+):", r"BRA\b.*`\((\.L_\w+)\)", r"\s+/\*[0-9a-f]{4,}\*/\s"
# From https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs: h100_sxm and
# a100_sxm_40.
CARDS = {
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "capability": "major: 9 feature_extension: ACCELERATED_FEATURES",
        "core_count": 132,
        "fpus_per_core": 128,
        "shared_memory_per_core": 233472,
        "l2_cache_size": 52428800,
        "shared_memory_per_block_optin": 232448,
        "clock_rate_ghz": 1.98,
        "memory_bandwidth": 3352320000000,
        "device_memory_size": 84942979072,
    },
    "a100": {
        "name": "NVIDIA A100-SXM4-40GB",
        "capability": "major: 8",
        "core_count": 108,
        "fpus_per_core": 64,
        "shared_memory_per_core": 167936,
        "l2_cache_size": 41943040,
        "shared_memory_per_block_optin": 166912,
        "clock_rate_ghz": 1.41,
        "memory_bandwidth": 1555200000000,
        "device_memory_size": 42331013120,
    },
}
COMMON = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 device_address_bits: 64
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "12.9.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
  name: "{name}" cuda_compute_capability {{ {capability} }} {rest}
}}
device_description_str: "{name}"
platform_name: "CUDA" runtime_version {{ major: 12 minor: 9 }} dnn_version_info {{ major: 9 minor: 10 }}
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--config", default=ROOT / "configs" / "xlnet_large_512.py", help="config file"
    )
    parser.add_argument("--tiny", action="store_true", help="two small layers")
    parser.add_argument("--card", default="h100", choices=CARDS, help="default: h100")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    parser.add_argument("--documents", action="store_true", help="rows of several documents")
    args, overrides = parser.parse_known_args()
    if args.tiny:
        args.config = ROOT / "tests" / "tiny_tpu.py"
    missing = why_not()
    if missing and not args.tiny:
        sys.exit(missing)
    if args.documents:
        print(json.dumps(documents(args.card)))
        return
    if missing:
        print(json.dumps({"not_compiled": missing, "lowered_bytes": lowered_bytes()}))
        return
    if not args.tiny:
        overrides = [
            "--config.train.batch_size=16",
            "--config.train.steps_per_dispatch=1",
            *overrides,
        ]
    result = compiled(str(args.config), args.card, overrides)
    if args.json:
        print(json.dumps(result))
        return
    for number, one in enumerate(result["kernels"]):
        if number == 0:
            print(f"| {' | '.join(one)} |\n|{'---|' * len(one)}")
        print(f"| {' | '.join(map(str, one.values()))} |")
    print(
        f"temporaries {result['temp_bytes'] / 2**30:.2f} GiB, arguments "
        f"{result['argument_bytes'] / 2**30:.2f} GiB"
    )


def why_not() -> str | None:
    """What is missing to compile for a GPU, in one line."""
    missing = [
        name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is None
    ]
    return f"no {' and no '.join(missing)}: install the extra gpu-aot" if missing else None


def lowered_bytes() -> int:
    """Of the kernels of both streams, forward and backward, as they are before a compiler of GPUs
    gets them.
    """
    import jax
    import jax.numpy as jnp
    from _attention import Sizes, streams, train

    from xlnet_jax.kernels import gpu

    given = (
        streams(Sizes(B=1, T=64, M=32, P=11, H=1), jnp.bfloat16),
        jax.ShapeDtypeStruct((), jnp.uint32),
    )
    return len(
        jax.jit(train(gpu.attend)).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    )


def describe(card: str) -> tuple[Any, dict[str, pathlib.Path]]:
    """A device that is not here, and the tools of its toolkit."""
    folders = importlib.util.find_spec("nvidia").submodule_search_locations
    tools = {path.name: path for folder in folders for path in pathlib.Path(folder).glob("*/bin/*")}
    toolkit = tools["ptxas"].parents[1]
    os.environ.update(
        JAX_PLATFORMS="cpu",
        JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
        PATH=f"{toolkit}/bin:{os.environ['PATH']}",
        XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={toolkit}",
    )
    from jax._src import xla_bridge
    from jax.experimental import topologies

    # Without a GPU, JAX does not know that `gpu` means `cuda` (its issue 23971).
    canonical = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda name: (
        "cuda" if name in ("gpu", "cuda") else canonical(name)
    )
    fields = dict(CARDS[card])
    names = {name: fields.pop(name) for name in ("name", "capability")}
    target = COMMON.format(
        **names, rest=" ".join(f"{name}: {value}" for name, value in fields.items())
    )
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=target)
    return topology.devices[0], tools


def compiled(config: str, card: str, overrides: list[str]) -> dict[str, Any]:
    """The kernels of attention in the step of a configuration, and the memory of the step, in
    bytes.
    """
    device, tools = describe(card)
    import jax

    from xlnet_jax import config as configs
    from xlnet_jax.distributed import mesh as meshes
    from xlnet_jax.kernels import gpu
    from xlnet_jax.train.recipe import make_recipe
    from xlnet_jax.train.step import build_step

    words = ["--config.model.attention=fused", *overrides]
    recipe = make_recipe(configs.override(configs.load(config), words))
    mesh, dtype = (
        meshes.make_mesh(recipe.config.mesh, [device]),
        jax.numpy.dtype(recipe.config.model.compute_dtype),
    )
    blocks = gpu.blocks_of(recipe.config.model.head_dim, dtype)
    with jax.set_mesh(mesh):
        built = build_step(recipe, mesh)
        traced = built.jitted.trace(built.abstract_state, built.abstract_batch, built.dropout_seed)
        step, kernels = compile_and_read(
            traced.lower(lowering_platforms=("cuda",)), tools, card, blocks
        )
    memory = step.memory_analysis()
    return {
        "config": config,
        "overrides": words,
        "device": device.device_kind,
        "jax": jax.__version__,
        "kernels": kernels,
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
    }


def documents(card: str) -> dict[str, Any]:
    """Instructions of rows of documents, by `DOCUMENTS`, and of a row of one text: `joined`,
    `plain` and `window`.
    """
    device, tools = describe(card)
    import jax
    import jax.numpy as jnp
    from _attention import DOCUMENTS, Sizes, in_documents, in_window, lowered, streams, visits

    from xlnet_jax.kernels import gpu

    plain = {"relative": False}
    cases = {"joined": {}, "documents": {"packed": True}, "plain": plain}
    cases["window"] = plain | {"near": True}
    sizes = Sizes(B=1, T=2048, M=0, P=341)
    blocks = gpu.blocks_of(sizes.E, jnp.dtype("bfloat16"))
    instructions: dict[str, Any] = collections.Counter()
    kernels = []
    for (case, options), chosen in itertools.product(cases.items(), (False, True)):
        stream = streams(sizes, jnp.bfloat16, **options)[chosen]
        rows = blocks.chosen if chosen else blocks.queries
        program = lowered(gpu.attend, sizes, device, chosen, "cuda", **options)
        found = compile_and_read(program, tools, card, blocks)[1]
        kernels += [{"case": case, **one} for one in found]
        for name in DOCUMENTS if case == "documents" else (case,):
            row = in_documents(stream, DOCUMENTS.get(name, DOCUMENTS["one"]))
            if case == "window":
                row = in_window(stream, NEAR)
            by_queries, by_keys, _ = visits(row, rows, blocks.keys)
            for one in found:
                visited = by_keys if "backward_keys" in one["name"] else by_queries
                instructions[name] += one["sass_per_score"] * rows * blocks.keys * visited
    shares = {name: round(n / instructions["one"], 3) for name, n in instructions.items()}
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        "instructions": {name: round(n) for name, n in instructions.items()},
        "shares": shares,
        "kernels": kernels,
    }


def compile_and_read(
    lowered: Any, tools: dict[str, pathlib.Path], card: str, blocks: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The compiled program, and its kernels of attention."""
    with tempfile.TemporaryDirectory() as folder:
        # Without a GPU, XLA cannot time tiles for its own products, and fails for some sizes: they
        # are cuBLAS's.
        options = {
            "xla_dump_to": folder,
            "xla_dump_emitter_re": "ptx",
            "xla_gpu_enable_triton_gemm": False,
        }
        program = lowered.compile(compiler_options=options)
        return program, list(read(pathlib.Path(folder), tools, card, blocks))


def read(folder: pathlib.Path, tools: dict[str, pathlib.Path], card: str, blocks: Any) -> Any:
    """The kernels of attention in XLA's dump of a program."""
    usage, machine_code, arch = {}, folder / "machine_code", "sm_90a" if card == "h100" else "sm_80"
    for path in folder.glob("*.ptx"):
        ptx = path.read_text()
        if name := re.search(r"\.entry (xlnet_attention\w*)", ptx):
            report = output(tools["ptxas"], "-v", f"-arch={arch}", path, "-o", machine_code)
            found = re.search(
                r"(\d+) bytes spill stores, (\d+) bytes.*?Used (\d+) registers", report, re.DOTALL
            )
            sass = output(tools["nvdisasm"], "-c", machine_code)
            usage[name[1]] = *map(int, found.groups()), in_loop(ptx, *PTX), in_loop(sass, *SASS)
    launches = re.findall(
        r"(xlnet_attention\w*) grid: \[(\d+), (\d+), (\d+)\] threads: "
        r"\[(\d+).*?shared_memory: (\d+)",
        "".join(path.read_text() for path in folder.glob("*thunk_sequence.txt")),
    )
    for name, *sizes in sorted(set(launches)):
        x, y, z, threads, shared = map(int, sizes)
        stores, loads, registers, ptx, sass = usage[name]
        scores = (
            (blocks.chosen if name.endswith("chosen") else blocks.queries) * blocks.keys / threads
        )
        yield {
            "name": name,
            "blocks": x * y * z,
            "threads": threads,
            "registers": registers,
            "spill_store_bytes": stores,
            "spill_load_bytes": loads,
            "shared_bytes": shared,
            "ptx_per_score": round(ptx / scores, 1),
            "sass_per_score": round(sass / scores, 1),
        }


def output(*command: Any) -> str:
    """What a program prints."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def in_loop(code: str, label: str, branch: str, instruction: str) -> int:
    """Instructions of the smallest loop that has more than half of those of the largest one."""
    begins, sizes, count = {}, {}, 0
    for line in code.splitlines():
        if found := re.match(label, line):
            begins[found[1]] = count
        count += bool(re.match(instruction, line))
        if (found := re.search(branch, line)) and found[1] in begins:
            sizes[found[1]] = count - begins[found[1]]  # of its last branch
    return min(size for size in sizes.values() if size > max(sizes.values()) / 2)


if __name__ == "__main__":
    main()
