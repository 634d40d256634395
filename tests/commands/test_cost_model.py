"""The account of a step on small scheduled modules, each counted by hand."""

import dataclasses

import numpy as np
import pytest

from xlnet_jax.aot import cost_model, hlo
from xlnet_jax.aot.schedule import Schedule
from xlnet_jax.aot.topology import CHIPS

# A cycle, a byte of HBM and a byte of the network take a second each.
CHIP = dataclasses.replace(
    CHIPS["v5e"], clock=1.0, hbm_bandwidth=1.0, ici_bandwidth=2.0, links=1, dcn_bandwidth=1.0
)
TILE = "f32[8,128]{1,0:T(8,128)}"
"""4096 bytes."""
GROUPS = "replica_groups=[1,2]<=[2], dimensions={0}"


def result(text, schedules=None, blocks=1, steps=1):
    program = hlo.Program(text)
    known = {
        name: each if isinstance(each, Schedule) else Schedule(each)
        for name, each in (schedules or {}).items()
    }
    known = cost_model.complete_schedules(program, known)
    found = cost_model.CostModel(
        program, known, CHIP, {"data": 2}, np.arange(2)[:, None], blocks
    ).result(steps, 1.0)
    return {
        name: value / 1e3 if name.endswith("_ms") and isinstance(value, float) else value
        for name, value in found.items()
    }


def entry(*lines, parameter=TILE, before=""):
    text = "\n".join(f"  {line}" for line in lines)
    return (
        f"{before}ENTRY %main (a: f32[]) -> f32[] {{\n  %a = {parameter} parameter(0)\n{text}\n}}\n"
    )


def loop(turns, *lines, parameter=TILE):
    """The computations of a loop over `%a`, and the instruction that runs it."""
    text = "\n".join(f"  {line}" for line in lines)
    before = (
        f"%body (a: f32[]) -> f32[] {{\n  %a = {parameter} parameter(0)\n{text}\n}}\n"
        f"%condition (q: f32[]) -> pred[] {{\n  %q = {parameter} parameter(0)\n"
        "  ROOT %more = pred[]{:S(6)} constant(true)\n}\n"
    )
    known = f'backend_config={{"known_trip_count":{{"n":"{turns}"}}}}'
    return before, f"%w = {parameter} while(%a), condition=%condition, body=%body, {known}"


def test_every_operation_takes_the_longest_of_its_needs_as_often_as_its_loop_turns():
    """Would catch a maximum over the step, which is 7 * 20,100, and a loop that counts once."""
    before, run = loop(
        7, f"%sum = {TILE} add(%a, %a)", f"ROOT %product = {TILE} multiply(%sum, %sum)"
    )
    text = entry(run, f"ROOT %negated = {TILE} negate(%w)", before=before)
    found = result(text, {"sum": 20_000, "product": 100, "negated": 50}, steps=2)
    memory = 3 * 4096
    assert found["compute_ms"] == pytest.approx((7 * 20_100 + 50) / 2)
    assert found["memory_ms"] == pytest.approx((7 * 2 * memory + 2 * 4096) / 2)
    assert found["lower_ms"] == pytest.approx((7 * (20_000 + memory) + 8192) / 2)
    assert found["upper_ms"] == pytest.approx((7 * (20_100 + 2 * memory) + 50 + 8192) / 2)
    assert found["mfu"] == pytest.approx(1 / found["upper_ms"])
    assert (
        found["collectives_ms"] == found["hidden_ms"] == 0 and found["data_dependent_loops"] == []
    )


@pytest.mark.parametrize(
    ("axes", "links"),
    [("data", 2), ("fsdp", 1), ("data+fsdp", 3), ("fsdp+tensor", 1), ("tensor", 1), ("slices", 1)],
)
def test_a_ring_has_the_links_along_its_sides_of_the_torus(axes, links):
    """A torus of 16 x 4, of which only the first side has joined ends; a part of that side is no
    ring either.
    """
    places = np.array([(x, y, 0) for x in range(16) for y in range(4) for _ in range(2)])
    mesh = {"data": 16, "fsdp": 4, "tensor": 2}
    program = hlo.Program(entry("ROOT %negated = f32[8]{0} negate(%a)"))
    assert (
        cost_model.CostModel(program, {}, CHIPS["v5e"], mesh, places, 1)._links(axes) == links / 4
    )
    parts = {"slices": 2, "data": 8, "fsdp": 4, "tensor": 2}
    assert cost_model.CostModel(program, {}, CHIPS["v5e"], parts, places, 1)._links("data") == 1 / 4


def test_products_that_libtpu_starts_closer_together_than_a_unit_takes_them_count_in_full():
    text = entry(BUFFER, f"ROOT %product = {VECTOR} negate(%v)")
    found = result(text, {"product": Schedule(600, products=800)})
    assert found["lower_ms"] == found["upper_ms"] == found["compute_ms"] == 800


SHARD, WHOLE, VECTOR = (
    "bf16[32,64]{1,0:S(1)}",
    "bf16[64,64]{1,0:S(1)}",
    "f32[8,128]{1,0:T(8,128)S(1)}",
)
BUFFER = f'%v = {VECTOR} custom-call(), custom_call_target="AllocateBuffer"'


def gather(work):
    """8192 bytes, of which the half crosses, around some work."""
    return (
        f"%start.{work} = ({SHARD}, {WHOLE}) all-gather-start(%a), {GROUPS}",
        f"%{work} = {VECTOR} exponential(%v)",
        f"%done.{work} = {WHOLE} all-gather-done(%start.{work})",
    )


def test_a_collective_is_added_and_hidden_only_behind_what_its_start_and_done_enclose():
    """Two turns of a loop whose collective is hidden in part; then one that is not, and one that is
    hidden wholly.
    """
    late = f"%late = {VECTOR} negate(%v)"
    before, run = loop(2, BUFFER, *gather("short"), late, parameter=SHARD)
    alone = f"%alone = {WHOLE} all-gather(%a), {GROUPS}"
    text = entry(run, BUFFER, alone, *gather("long"), parameter=SHARD, before=before)
    found = result(text, {"short": 1000, "late": 300, "long": 9000})
    assert found["collectives_ms"] == 4 * 4096 and found["hidden_ms"] == 2 * 1000 + 4096
    assert found["lower_ms"] == found["upper_ms"] == 2 * (4096 + 300) + 4096 + 9000


@pytest.mark.parametrize("pieces", [1, 3])
def test_pieces_of_one_collective_begin_with_the_first_and_end_with_the_last(pieces):
    """Fusions, as on v5e. What is in them and between them hides it; each piece alone would count
    it thrice, and its array in HBM as well.
    """
    whole = WHOLE.replace("S(1)", "T(8,128)(2,1)")
    chain = 'channel_id=1, replica_groups=[1,2]<=[2], frontend_attributes={chain_id="0"}'
    before = "".join(
        f"%piece.{n} (p: bf16[32,64]) -> bf16[64,64] {{\n  %p.{n} = {SHARD} parameter(0)\n"
        f"  ROOT %part.{n} = {whole} all-gather(%p.{n}), {chain}\n}}\n"
        for n in range(pieces)
    )
    lines = [
        f"%fused.{n} = {whole} fusion(%a), kind=kCustom, calls=%piece.{n}" for n in range(pieces)
    ]
    text = entry(*lines, parameter=SHARD, before=before)
    found = result(text, {"fused.0": 100, "fused.1": 1000, "fused.2": 10})
    assert found["collectives_ms"] == found["lower_ms"] == 4096 and found["memory_ms"] == 0
    # A single operation is no overlap that the program promises.
    assert found["hidden_ms"] == (1110 if pieces > 1 else 0)
    assert found["upper_ms"] == 4096 + (100 if pieces == 1 else 0)


def test_a_copy_ahead_has_the_bandwidth_that_the_work_beside_it_leaves():
    """4096 bytes come to vector memory while an operation computes 5000 and moves 2 * 1024."""
    text = entry(
        f"%ahead = ({TILE}, {VECTOR}, u32[]{{:S(2)}}) copy-start(%a)",
        "%small = f32[256]{0} iota()",
        "%work = f32[256]{0} sine(%small)",
        f"%here = {VECTOR} copy-done(%ahead)",
    )
    found = result(text, {"work": 5000})
    # `iota` keeps HBM busy; `work` leaves 5000 - 2048.
    assert found["memory_ms"] == 4096 + 1024 + 2048 and found["hidden_ms"] == 0
    assert found["lower_ms"] == 1024 + 5000 + (4096 - 2952)
    assert found["upper_ms"] == 1024 + 7048 + max(4096 - 5000, 0)


def fusion(*lines, of="%a", result=TILE):
    body = "\n".join(f"  {line}" for line in lines)
    before = f"%inside (p: f32[]) -> f32[] {{\n{body}\n}}\n"
    return before, f"ROOT %f = {result} fusion({of}), kind=kLoop, calls=%inside"


STACK = "f32[24,8,128]{2,1,0:T(8,128)}"
ZERO = "%zero = s32[]{:S(6)} constant(0)"


@pytest.mark.parametrize(
    ("read", "lines", "written", "moved"),
    [
        # One of 24 layers is read, through a bitcast, and written.
        (
            STACK,
            [
                f"%same = {STACK} bitcast(%p)",
                f"%cut = {TILE} dynamic-slice(%same, %zero)",
                f"ROOT %n = {TILE} negate(%cut)",
            ],
            TILE,
            2 * 4096,
        ),
        # The result stays on the chip.
        (
            STACK,
            [f"%cut = {TILE} dynamic-slice(%p, %zero)", f"ROOT %n = {TILE} negate(%cut)"],
            VECTOR,
            4096,
        ),
        # Used whole besides: once, not more than there is.
        (
            STACK,
            [f"%cut = {TILE} dynamic-slice(%p, %zero)", f"ROOT %n = {STACK} negate(%p)"],
            STACK,
            2 * 24 * 4096,
        ),
        # An update in place writes what is new.
        (
            STACK,
            [
                f"%new = {TILE} broadcast(%zero)",
                f"%put = {STACK} dynamic-update-slice(%p, %new, %zero)",
                f"ROOT %r = {STACK} bitcast(%put)",
            ],
            STACK,
            4096,
        ),
        # Tiles are moved whole: [3, 130] takes [8, 256].
        (
            "f32[3,130]{1,0:T(8,128)}",
            ["ROOT %n = bf16[3,130]{1,0:T(8,128)(2,1)} negate(%p)"],
            "bf16[3,130]{1,0:T(8,128)(2,1)}",
            8 * 256 * (4 + 2),
        ),
        # The first dimension is the minor one.
        (
            "f32[130,3]{0,1:T(8,128)}",
            ["ROOT %n = f32[130,3]{0,1:T(8,128)} negate(%p)"],
            "f32[130,3]{0,1:T(8,128)}",
            2 * 8 * 256 * 4,
        ),
    ],
    ids=["slice", "on chip", "whole", "in place", "tiles", "order"],
)
def test_bytes_are_those_of_the_parts_that_cross_to_hbm(read, lines, written, moved):
    before, call = fusion(ZERO, f"%p = {read} parameter(0)", *lines, result=written)
    assert result(entry(call, parameter=read, before=before))["memory_ms"] == moved


def test_the_upper_time_takes_the_estimate_of_the_compiler_where_hbm_is_touched():
    config = 'backend_config={"window_config":{"estimated_cycles":"50000"}}'
    text = entry(
        f"%in.hbm = {TILE} negate(%a), {config}",
        BUFFER,
        f"%on.chip = {VECTOR} negate(%v), {config}",
    )
    found = result(text, {"in.hbm": 100, "on.chip": 100})
    assert found["lower_ms"] == 8192 + 100 and found["upper_ms"] == 50_000 + 100


KERNEL = f'{VECTOR} custom-call(), custom_call_target="tpu_custom_call"'


def test_a_loop_of_a_kernel_whose_turns_depend_on_data_is_named_and_bounded():
    """Of 100 bundles 40 are in it; the other kernel is equal, and libtpu wrote its schedule
    once.
    """
    schedule = Schedule(100, 40, {"MATMUL": 0.5, "MATPUSH": 0.6})
    text = entry(f"%attention.1 = {KERNEL}", f"%attention.2 = {KERNEL}")
    found = result(text, {"attention.1": schedule}, blocks=4)
    assert found["lower_ms"] == 2 * 100 and found["upper_ms"] == 2 * (100 + 3 * 40)
    assert [each["kernel"] for each in found["data_dependent_loops"]] == [
        "attention.1",
        "attention.2",
    ]
    assert {each["most_turns"] for each in found["data_dependent_loops"]} == {4}
    assert found["units"] == dict.fromkeys(
        ("attention.1", "attention.2"), {"MATMUL": 0.5, "MATPUSH": 0.6}
    )
    with pytest.raises(RuntimeError, match="no schedule of the kernel attention.1"):
        result(text)


def test_the_upper_time_is_divided_by_kind_and_by_place_in_the_model():
    """A kernel twice, a collective hidden in part, and three turns of a product, of work in HBM and
    of work on the core, of which two have one place. The parts add up to the whole.
    """
    place = 'metadata={op_name="jit(steps)/while/body/layers/'
    before, run = loop(
        3,
        BUFFER,
        f'%fusion.1 = {VECTOR} exponential(%v), {place}inner/dot_general"}}',
        f'%fusion.2 = {VECTOR} negate(%v), {place}inner/add"}}',
        f'%fusion.3 = {VECTOR} sine(%v), {place}inner/add"}}',
        f'%fusion.4 = {TILE} copy(%a), {place}outer/add"}}',
    )
    kernel = KERNEL.replace("[8,", "[16,")  # not of the type of the buffer
    kernels = (f"%attention.1 = {kernel}", f"%attention.2 = {kernel}")
    ahead = (
        f"%start = ({SHARD}, {WHOLE}) all-gather-start(%a), {GROUPS}",
        kernels[0],
        f"%done = {WHOLE} all-gather-done(%start)",
    )
    text = entry(run, *ahead, kernels[1], before=before)
    known = {
        "fusion.1": Schedule(500, products=600),
        "fusion.2": 70,
        "fusion.3": 30,
        "fusion.4": 100,
        "attention.1": 1000,
    }
    found = result(text, known, steps=2)
    parts = {
        ("kernels", "attention"): 2 * 1000 / 2,
        ("products", "layers/inner/dot_general"): 3 * 600 / 2,
        ("vector", "layers/inner/add"): 3 * (70 + 30) / 2,
        ("memory", "layers/outer/add"): 3 * (100 + 2 * 4096) / 2,
        ("collectives", "start"): (4096 - 1000) / 2,
    }
    shown = [(each["kind"], each["operation"]) for each in found["operations"]]
    assert shown == sorted(parts, key=lambda part: -parts[part])
    for each in found["operations"]:
        assert each["upper_ms"] / 1e3 == pytest.approx(parts[each["kind"], each["operation"]])
    assert found["operations"][0]["lower_ms"] / 1e3 == pytest.approx(3 * 2 * 4096 / 2)
    kinds = found["upper_by_kind_ms"]
    assert {name: total / 1e3 for name, total in kinds.items()} == pytest.approx(
        {kind: total for (kind, _), total in parts.items()}
    )
    assert sum(kinds.values()) / 1e3 == pytest.approx(found["upper_ms"])


def test_a_condition_counts_its_shortest_branch_below_and_its_longest_above():
    branch = (
        "%{0} (p: f32[]) -> f32[] {{\n  %p.{0} = f32[8]{{0:S(1)}} parameter(0)\n"
        "  ROOT %x.{0} = f32[8]{{0:S(1)}} negate(%p.{0})\n}}\n"
    )
    call = "ROOT %c = f32[8]{0:S(1)} conditional(%a, %a, %a), branch_computations={%first, %second}"
    before = "".join(map(branch.format, ("first", "second")))
    found = result(
        entry(call, parameter="f32[8]{0:S(1)}", before=before),
        {"x.first": Schedule(10), "x.second": Schedule(70)},
    )
    assert (found["lower_ms"], found["upper_ms"]) == (10, 70)
