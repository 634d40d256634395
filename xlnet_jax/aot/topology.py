"""TPU slices by name, to compile without TPU: devices as libtpu describes them, and published chip
figures.

A topology counts chips (`v5e:16x16` is 256 chips), JAX counts devices: a v3 or TPU7x chip is two
devices, one per core; a v4 or v5p chip is one device with two cores (megacore); a v5e or v6e chip
is one device with one core.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.resources
import importlib.util
import math
import os
import re
from typing import Any

from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import how_to_install

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of one chip, and its JAX devices."""

    device_kind: str
    """JAX's name of its devices."""
    devices: int
    hbm_bytes: int
    peak_flops: float
    """Dense bfloat16, per second."""
    hbm_bandwidth: float
    """Bytes per second."""
    ici_bandwidth: float
    """Bytes per second over all links to other chips of the slice, sum of both directions."""
    links: int
    """Links of a chip: two for each side of the torus."""
    ring: int
    """The ends of a side are joined if its number of chips is a multiple of this number."""
    dcn_bandwidth: float | None
    """Bytes per second to other slices; None if no figure is published."""
    clock: float
    """Cycles per second of a core."""
    example: str
    jaxlib: tuple[int, int] = (0, 10)
    """First jaxlib version that reads libtpu's programs for the chip, which may use SparseCores."""


# Cloud pages: https://docs.cloud.google.com/tpu/docs/v3 and so on for each name. The pages of v3
# and v4 do not give the links: v3 has four of 656 Gbit/s each way (Jouppi et al., "A
# Domain-Specific Supercomputer for Training Deep Neural Networks", CACM 63(7), 2020), v4 six of 50
# GB/s each way ("TPU v4", ISCA 2023, arXiv:2304.01433). These two papers also give the clocks. The
# other clocks follow from the peak: a core does 4 products of 128 x 128 numbers per cycle on v5e
# and v5p (two cores), and 4 products of 256 x 256 on v6e and TPU7x. The 4 products of v6e and TPU7x
# are our assumption: the pages give v6e two units, which would mean a clock of 3.5 GHz. A pod of v3
# is a torus of 32 x 32 chips, a pod of v5e or v6e a torus of 16 x 16; the ends of a shorter side
# are not joined. Slices of v4, v5p and TPU7x are made of cubes of 4 x 4 x 4 chips; optical switches
# join the ends of the cubes.
CHIPS = {
    "v3": Chip("TPU v3", 2, 32 * GIB,
               123e12, 900e9, 656e9, 4, 32, None, 0.94e9, "v3:16x16"),
    "v4": Chip("TPU v4", 1, 32 * GIB,
               275e12, 1200e9, 600e9, 6, 4, None, 1.05e9, "v4:8x8x4"),
    # 6.4 Tbit/s to the data centre for a pod of 256 chips.
    "v5e": Chip("TPU v5 lite", 1, 16 * GIB,
                197e12, 819e9, 400e9, 4, 16, 6.4e12 / 8 / 256, 1.5e9, "v5e:16x16"),
    "v5p": Chip("TPU v5", 1, 95 * GIB,
                459e12, 2765e9, 1200e9, 6, 4, 50e9 / 8, 1.75e9, "v5p:8x8x8", (0, 12)),
    # From the pages of v6e and of TPU7x.
    "v6e": Chip("TPU v6 lite", 1, 32 * GIB,
                918e12, 1638e9, 800e9, 4, 16, 100e9 / 8, 1.75e9, "v6e:16x16", (0, 12)),
    "tpu7x": Chip("TPU7x", 2, 192 * GIB,
                  2307e12, 7380e9, 1200e9, 6, 4, 100e9 / 8, 2.2e9, "tpu7x:4x4x4", (0, 12)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SliceShapes:
    """The slices of one TPU that Google Cloud rents: a row of slices.txt."""

    largest: int
    """Chips of the largest slice."""
    joined: bool
    shapes: tuple[str, ...]

    def has(self, sides: list[int]) -> bool:
        """Returns whether Google Cloud rents a slice with these side lengths, in any order."""
        cube = (
            "cubes" in self.shapes
            and len(sides) == 3
            and all(side and side % 4 == 0 for side in sides)
        )
        listed = sorted(map(str, sides)) in [sorted(shape.split("x")) for shape in self.shapes]
        return (cube or listed) and math.prod(sides) <= self.largest


def slice_shapes() -> dict[str, SliceShapes]:
    """Reads the table slices.txt, by the TPU names of `compile`; other TPUs are left out."""
    lines = (
        importlib.resources.files("xlnet_jax.aot").joinpath("slices.txt").read_text().splitlines()
    )
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {
        row[0]: SliceShapes(int(row[6]), row[7] == "yes", tuple(row[9:]))
        for row in rows
        if row[0] != "-"
    }


@dataclasses.dataclass(frozen=True)
class Topology:
    """One slice, or several equal ones."""

    name: str
    slices: int
    chip: Chip
    devices: tuple[Any, ...]
    """Descriptions of JAX devices."""

    @property
    def hbm_bytes(self) -> int:
        """HBM of one device."""
        return self.chip.hbm_bytes // self.chip.devices

    @property
    def chips(self) -> int:
        """Number of chips in all slices."""
        return len(self.devices) // self.chip.devices


def prepare_environment() -> None:
    """Sets the environment variables that libtpu and JAX need on a machine without TPU; existing
    values stay. Call this before importing JAX.
    """
    defaults = {
        "JAX_PLATFORMS": "cpu",
        # libtpu would ask a metadata server which TPU it runs on.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_HOST_BOUNDS": "1,1,1",
        # libtpu allows one process at a time, because of the chips; a compiler uses no chip.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # A program for devices that are not present cannot be loaded from JAX's cache; see
        # `run.programs`.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def check_topology(name: str, slices: int = 1) -> Chip:
    """Returns the chip of a topology such as `v5e:16x16`. Raises BadInput, before JAX is loaded, if
    Google Cloud does not rent the topology.
    """
    kind, _, layout = name.partition(":")
    if kind not in CHIPS:
        examples = ", ".join(chip.example for chip in CHIPS.values())
        raise BadInput(f"--topology={name}: no such TPU; use for example {examples}")
    chip = CHIPS[kind]
    sold = slice_shapes()[kind]
    sides = (
        [int(side) for side in layout.split("x")]
        if re.fullmatch(r"\d{1,5}(x\d{1,5})*", layout)
        else []
    )
    if not sold.has(sides):
        shapes = ", ".join(sold.shapes).replace("cubes", "or multiples of 4")
        more = ", and --slices for more" if sold.joined else ""
        raise BadInput(
            f"--topology={name}: no slice has this shape; {chip.example} exists, and {kind} has "
            f"{shapes}, up to {sold.largest} chips{more}"
        )
    if slices > 1 and not sold.joined:
        raise BadInput(
            f"--slices={slices}: {kind} slices cannot be joined; those of v4 and later can"
        )
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise BadInput(f"compile needs the TPU compiler libtpu: {how_to_install('tpu')}")
    return chip


def check_readable(name: str, chip: Chip) -> None:
    """Raises BadInput, before an hour of compilation, if this jaxlib cannot read libtpu's programs
    for the chip.
    """
    version = importlib.metadata.version("jaxlib")
    if tuple(int(part) for part in version.split(".")[:2]) < chip.jaxlib:
        needed = ".".join(map(str, chip.jaxlib))
        raise BadInput(
            f"--topology={name}: jaxlib {version} cannot read the programs that libtpu makes for "
            f"it; jaxlib {needed} can, which needs Python 3.12"
        )


def describe(name: str, slices: int = 1) -> Topology:
    """Returns the devices of `slices` slices. Raises BadInput if the name is unknown, or libtpu is
    missing or rejects the name.
    """
    chip = check_topology(name, slices)
    import jax
    from jax.experimental import topologies

    options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
    if name.startswith("v4:"):
        # libtpu's default is one device per core, which no v4 slice in the cloud uses.
        options["chip_config_name"] = "megacore"
    try:
        devices = tuple(
            topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
        )
    except jax.errors.JaxRuntimeError as error:
        raise BadInput(
            f"--topology={name}: {summary(error)}; for example {chip.example}"
        ) from error
    return Topology(name, slices, chip, devices)
