"""What `compile` reads and adds up, on recorded snippets: no TPU compiler is needed here;
`tests/aot/` has it.
"""

import dataclasses
import importlib.util
import os
import textwrap
import time
from types import SimpleNamespace

import jax
import pytest
import tiny
import tiny_tpu

from xlnet_jax import command_list, messages
from xlnet_jax.aot import compile, hlo, schedule, topology
from xlnet_jax.aot import report as compiling
from xlnet_jax.aot.topology import CHIPS
from xlnet_jax.config import override
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.errors import BadInput
from xlnet_jax.model import flops
from xlnet_jax.train.recipe import make_recipe

MESH = {"data": 2, "fsdp": 2, "tensor": 1}

# Cut from what the TPU compiler printed for two layers and a dispatch of ten steps.
MODULE = textwrap.dedent("""\
    HloModule jit_steps, is_scheduled=true

    %add (x: f32[], y: f32[]) -> f32[] {
      %x = f32[]{:T(128)} parameter(0)
      %y = f32[]{:T(128)} parameter(1)
      ROOT %sum = f32[]{:T(128)} add(%x, %y)
    }

    %piece.1 (p: bf16[32,64]) -> bf16[128,64] {
      %p = bf16[32,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)
      ROOT %all-gather.1 = bf16[64,64]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=126, replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_1'}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="0"}
    }

    %piece.2 (q: bf16[32,64]) -> bf16[128,64] {
      %q = bf16[32,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)
      ROOT %all-gather.2 = bf16[64,64]{1,0:T(8,128)(2,1)} all-gather(%q), channel_id=126, replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_1'}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="0"}
    }

    %all-reduce-scatter.1 (r: f32[64,8]) -> f32[32,8] {
      %r = f32[64,8]{1,0:T(8,128)} parameter(0)
      %all-reduce.9 = f32[64,8]{1,0:T(8,128)} all-reduce(%r), channel_id=9, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=%add
      %zero = u32[] constant(0)
      ROOT %cut = f32[32,8]{1,0:T(8,128)} dynamic-slice(%all-reduce.9, %zero, %zero), dynamic_slice_sizes={32,8}
    }

    %layer (carry: (s32[], f32[2,100], bf16[32,64], f32[64,8])) -> (s32[], f32[2,100], bf16[32,64], f32[64,8]) {
      %carry = (s32[]{:T(128)}, f32[2,100]{1,0:T(8,128)}, bf16[32,64]{1,0}, /*index=3*/f32[64,8]{1,0}) parameter(0)
      %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
      %stack = f32[2,100]{1,0:T(8,128)} get-tuple-element(%carry), index=1
      %w = bf16[32,64]{1,0} get-tuple-element(%carry), index=2
      %g = f32[64,8]{1,0} get-tuple-element(%carry), index=3
      %begun = bf16[64,64]{1,0:T(8,128)(2,1)} fusion(%w), kind=kCustom, calls=%piece.1
      %ended = bf16[64,64]{1,0:T(8,128)(2,1)} fusion(%w), kind=kCustom, calls=%piece.2
      %scattered = f32[32,8]{1,0:T(8,128)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
      %moved.s = (bf16[32,64]{1,0}, bf16[32,64]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%w), channel_id=7, source_target_pairs={{0,2},{1,3}}
      %moved = bf16[32,64]{1,0} collective-permute-done(%moved.s)
      %one = s32[]{:T(128)} constant(1)
      %next = s32[]{:T(128)} add(%i, %one)
      ROOT %out = (s32[]{:T(128)}, f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}) tuple(%next, %stack, %w, %g)
    }

    %layer.condition (c: (s32[], f32[2,100], bf16[32,64], f32[64,8])) -> pred[] {
      %layers = s32[]{:T(128)} constant(2)
      %c = (s32[]{:T(128)}, f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}) parameter(0)
      %j = s32[]{:T(128)} get-tuple-element(%c), index=0
      ROOT %lt.1 = pred[]{:T(512)} compare(%j, %layers), direction=LT
    }

    %step (state: (s32[], f32[2,100], bf16[32,64], f32[64,8], s32[])) -> (s32[], f32[2,100], bf16[32,64], f32[64,8], s32[]) {
      %state = (s32[], f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}, s32[]) parameter(0)
      %begin = (s32[]{:T(128)}, f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}) tuple(%state)
      %while.1 = (s32[]{:T(128)}, f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}) while(%begin), condition=%layer.condition, body=%layer
      %loss = f32[]{:T(128)} constant(0)
      %all-reduce.1 = (f32[]{:T(128)}, f32[]{:T(128)}) all-reduce(%loss, %loss), channel_id=1, replica_groups=mesh['axis_0'=4] {'axis_0'}, use_global_device_ids=true, to_apply=%add
      %send.1 = (bf16[1,2,128]{2,1,0}, u32[], token[]) send(%grads, %after), channel_id=6, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
      %grads = bf16[1,2,128]{2,1,0} constant({...})
      %m = s32[]{:T(128)} get-tuple-element(%state), index=0
      %more = s32[]{:T(128)} constant(1)
      %then = s32[]{:T(128)} add(%m, %more)
      ROOT %state.2 = (s32[], f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}, s32[]) tuple(%then)
    }

    %step.condition (d: (s32[], f32[2,100], bf16[32,64], f32[64,8], s32[])) -> pred[] {
      %d = (s32[], f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}, s32[]) parameter(0)
      %k = s32[] get-tuple-element(%d), index=0
      %steps = s32[] get-tuple-element(%d), index=4
      ROOT %lt.2 = pred[] compare(%k, %steps), direction=LT
    }

    ENTRY %main (a: f32[2,100]) -> f32[2,100] {
      %a = f32[2,100]{1,0:T(8,128)} parameter(0)
      %b = bf16[32,64]{1,0} constant({...})
      %e = f32[64,8]{1,0} constant({...})
      %ten = s32[] constant(10)
      %none = s32[] constant(0)
      %start = (s32[], f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}, s32[]) tuple(%none, %a, %b, %e, %ten)
      %while.2 = (s32[], f32[2,100]{1,0}, bf16[32,64]{1,0}, f32[64,8]{1,0}, s32[]) while(%start), condition=%step.condition, body=%step
      ROOT %result = f32[2,100]{1,0:T(8,128)} get-tuple-element(%while.2), index=1
    }
    """)  # noqa: E501


def test_collectives_of_a_module_by_hand():
    """Ten steps of two layers; a bound is a constant of the condition, or carried along."""
    program = hlo.Program(MODULE)
    assert (program.runs["main"], program.runs["step"], program.runs["layer"]) == (1, 10, 20)
    found = {
        (one.kind, one.axis, one.network): (one.group, one.count, one.bytes)
        for one in program.collectives(MESH)
    }
    assert found == {
        # Two pieces of one gather; the bytes are the whole array's.
        ("all-gather", "fsdp", "ici"): (2, 20, 20 * 64 * 64 * 2),
        ("reduce-scatter", "fsdp", "ici"): (2, 20, 20 * 64 * 8 * 4),
        ("collective-permute", "data", "ici"): (2, 20, 20 * 32 * 64 * 2),
        ("all-reduce", "data+fsdp", "ici"): (4, 10, 10 * 8),
        ("all-reduce", "data", "dcn"): (2, 10, 10 * 2 * 128 * 2),
    }


def test_a_loop_without_a_constant_bound_is_no_guess():
    with pytest.raises(ValueError, match="while.1: its trip count is not a constant"):
        hlo.Program(MODULE.replace("%j, %layers), direction=LT", "%j, %layers), direction=NE"))
    known = MODULE.replace(
        "body=%layer\n", 'body=%layer, backend_config={"known_trip_count":{"n":"5"}}\n'
    )
    assert hlo.Program(known).runs["layer"] == 50
    # The first iteration taken out: the loop starts at a copy of 1.
    peeled = MODULE.replace(
        "%none = s32[] constant(0)", "%one = s32[] constant(1)\n      %none = s32[] copy(%one)"
    )
    assert hlo.Program(peeled).runs["step"] == 9
    # Three iterations joined to one.
    joined = MODULE.replace(
        "%more = s32[]{:T(128)} constant(1)", "%more = s32[]{:T(128)} constant(3)"
    )
    assert hlo.Program(joined).runs["step"] == 4
    with pytest.raises(
        ValueError, match="loop with the body step: it does not count by a constant"
    ):
        hlo.Program(MODULE.replace("add(%m, %more)", "multiply(%m, %more)"))


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, dimensions={0}", [[0, 2], [1, 3]]),
        ("replica_groups={}, to_apply=%add", [[0, 1, 2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}, x", [[0, 1, 2, 3]]),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=2], device_ids=([2,2]T(1,0)) {'axis_0'}, x",
            [[0, 1], [2, 3]],
        ),
        ("replica_groups=mesh['axis_0'=4] {'axis_0':(1)2}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=4] {'axis_1':(2)2}, x", [[0, 1], [2, 3]]),
        ("source_target_pairs={{0,1},{1,2},{2,3}}, x", [[0, 1], [1, 2], [2, 3]]),
    ],
)
def test_replica_groups_in_every_notation(attributes, groups):
    assert hlo.device_groups(attributes, 4) == groups


def test_axes_of_groups_and_bytes_of_types():
    with pytest.raises(ValueError, match="groups"):
        hlo.device_groups("replica_groups=mesh<'axis_0'=4>, x", 4)
    axes = {"data": 2, "fsdp": 2, "tensor": 2}
    assert hlo.axes_of([[0], [1]], axes) == "none"
    kinds = "(f32[]{:T(128)}, /*index=1*/pred[8]{0}, s32[2,2], f8e4m3fn[16], token[])"
    assert hlo.array_bytes(kinds) == 44


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (17.05G) "
            "exceeds available HBM (15.75G). HLO module: jit_steps.",
            (17.05, 15.75),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G "
            "hbm. Exceeded hbm capacity by 4.75G.",
            (20.5, 15.75),
        ),
    ],
)
def test_what_the_compiler_says_when_memory_is_short(message, expected):
    assert compile.out_of_memory(message) == tuple(int(number * 2**30) for number in expected)
    with pytest.raises(RuntimeError, match="the TPU compiler failed: INTERNAL"):
        compile.out_of_memory("INTERNAL: something else")
    vector = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17.57M of 16.00M vmem."
    )
    with pytest.raises(RuntimeError, match="the TPU compiler failed: RESOURCE_EXHAUSTED"):
        compile.out_of_memory(vector)


def test_the_account_and_utilisation_agree_on_peaks():
    for name, chip in CHIPS.items():
        if name != "tpu7x":
            assert chip.peak_flops / chip.devices == flops.PEAK_FLOPS[chip.device_kind], name


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"fsdp": 4}, r"mesh.slices=2 x mesh.data=-1 x mesh.fsdp=4 .* does not fit 4 devices"),
        ({"slices": 4}, r"mesh.slices=4: the devices belong to 2 slices; leave it at 0"),
    ],
)
def test_slices_are_what_the_devices_say(wanted, message):
    config = dataclasses.replace(tiny_tpu.config().mesh, **wanted)
    with pytest.raises(BadInput, match=message):
        make_mesh(
            config, [SimpleNamespace(platform="tpu", slice_index=number) for number in (0, 0, 1, 1)]
        )


def test_a_chip_whose_programs_this_jaxlib_cannot_read_is_refused_before_compiling(monkeypatch):
    monkeypatch.setattr(topology.importlib.metadata, "version", lambda package: "0.10.2")
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(compiling, "attempt", lambda *_: pytest.fail("compiled"))
    with pytest.raises(BadInput, match="v6e:16x16: jaxlib 0.10.2 cannot read .* jaxlib 0.12 can"):
        compiling.compile_for(tiny_tpu.config(), "v6e:16x16")
    topology.check_readable("v5e:16x16", CHIPS["v5e"])


def test_a_phase_is_compiled_with_the_schedule_of_the_whole_run(monkeypatch):
    """Would fail if the warm-up had to be shorter than the phase. Its days are those of its own
    steps.
    """
    for name, stand_in in {
        "check_topology": lambda *_: None,
        "check_readable": lambda *_: None,
        "describe": lambda *_: None,
        "attempt": lambda recipe, _: SimpleNamespace(fits=True, recipe=recipe),
        "report": lambda trial, _, steps: {
            "rate": float(trial.recipe.learning_rate(29)),
            "steps": steps,
        },
    }.items():
        monkeypatch.setattr(compiling, name, stand_in)
    optimizer = {"schedule": "cosine", "warmup_steps": 20, "learning_rate": 1e-2}
    config = dataclasses.replace(
        tiny.config(optimizer=optimizer), phases=({"steps": 30}, {"steps": 10})
    )
    result = compiling.compile_for(config, "v5e:2x2", phase=1)
    assert result["steps"] == 10 and result["rate"] > 5e-3


def test_what_the_compiler_refuses_with_options_is_one_line(monkeypatch):
    def refuse():
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: this might lead to incorrect results")

    monkeypatch.setattr(compile, "lower", lambda *_: (None, SimpleNamespace(compile=refuse)))
    monkeypatch.setattr(compile, "argument_bytes", lambda _: {})
    config = override(tiny_tpu.config(), ["--config.train.compiler_options=a=1"])
    with pytest.raises(
        BadInput, match="^train.compiler_options=a=1: UNIMPLEMENTED: .* incorrect results; leave it"
    ):
        compile.attempt(make_recipe(config), SimpleNamespace(devices=jax.devices()[:1]))


def test_the_peak_counts_an_aliased_result_once_and_the_arguments_of_a_refused_program(
    monkeypatch, caplog
):
    """The state is donated: what a step returns of it takes its place. The log says both, and while
    a compilation takes long.
    """
    caplog.set_level("INFO", "xlnet_jax")
    monkeypatch.setattr(compile, "BUSY_SECONDS", 0.01)

    def refuse():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 2.00K of 1.00K hbm.")

    def attempt(made):
        monkeypatch.setattr(compile, "lower", lambda *_: (None, SimpleNamespace(compile=made)))
        topology = SimpleNamespace(devices=jax.devices()[:1], hbm_bytes=122)
        return compile.attempt(make_recipe(tiny_tpu.config()), topology)

    monkeypatch.setattr(compile, "argument_bytes", lambda _: {"parameters": 60, "batch": 40})
    sizes = {"argument": 100, "output": 90, "alias": 80, "temp": 7, "generated_code": 5}
    memory = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    compiled = SimpleNamespace(memory_analysis=lambda: memory)
    trial = attempt(lambda: time.sleep(0.2) or compiled)
    assert (trial.needed, trial.temp, trial.fits) == (122, 7, True)
    assert not dataclasses.replace(trial, available=121).fits
    trial = attempt(refuse)
    assert (trial.needed, trial.available, trial.fits) == (2048 + 100, 1024, False)
    told = " ".join(caplog.messages)
    assert caplog.messages[0].startswith("compiling with train.batch_size=8, model.remat=none, mes")
    assert "compiling for 0.1 s" in told and "compiled in 0.2 s: it needs 0.00 of 0.00 GiB" in told
    assert "too large, it would need 0.00 of 0.00 GiB" in told


def test_the_units_of_kernels_are_printed_only_where_they_are_wanted(monkeypatch):
    def result(**_):
        return {"account": {"lower_ms": 1.0, "units": {"kernel.1": {"XLU": 0.5}}}}

    def keys(units):
        found = command_list.compile_for("v5e:2x2", 1, units=units)
        return {*found["account"]}

    monkeypatch.setattr(topology, "check_topology", lambda *_: None)
    monkeypatch.setattr(topology, "prepare_environment", lambda: None)
    monkeypatch.setattr(command_list, "imported", lambda _: result)
    assert keys(units=False) == {"lower_ms"} and keys(units=True) == {"lower_ms", "units"}
    monkeypatch.setattr(messages.output, "json", True)
    assert keys(units=False) == {"lower_ms", "units"}


def test_without_libtpu_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else real(name)
    )
    with pytest.raises(BadInput, match=r"pip install .* '\.\[tpu\]'"):
        topology.check_topology("v5e:2x2")


def test_the_environment_is_set_only_where_it_is_not(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "here")
    topology.prepare_environment()
    for name, value in (
        ("JAX_PLATFORMS", "tpu,cpu"),
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_WORKER_HOSTNAMES", "here"),
    ):
        assert os.environ[name] == value


def test_a_report_for_people_says_projection(capsys):
    result = {
        "slices": 2,
        "fits": False,
        "peak_hbm_bytes": 2**35,
        "arguments": {"parameters": 2**20},
        "advice": [],
        "projected_days": 1.5,
        "collectives": [{"kind": "all-reduce", "bytes": 2**30}],
        "account": {
            "lower_ms": 1.5,
            "units": {"kernel.1": {"XLU": 0.5}},
            "upper_by_kind_ms": {"memory": 1.0, "products": 0.5},
            "operations": [{"kind": "memory", "upper_ms": 1.0, "operation": "layers/add"}],
            "data_dependent_loops": [],
        },
    }
    compiling.print_report(result)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {
        "slices 2",
        "peak_hbm_bytes 32.000 GiB",
        "arguments parameters 0.001 GiB",
        "PROJECTION projected_days 1.5",
        "PROJECTION account lower_ms 1.5, data_dependent_loops []",
        "PROJECTION account upper_by_kind_ms memory 1, products 0.5",
        "PROJECTION account operations kind memory, upper_ms 1, operation layers/add",
        "units kernel kernel.1, XLU 0.5",
        "collectives kind all-reduce, bytes 1.000 GiB",
        "advice nothing tried fits; use a larger topology or a smaller model",
    } <= set(shown)


@pytest.mark.parametrize("grows", [1.0, 1.3, 0.6])
@pytest.mark.parametrize("fit", [0, 1, 7, 64, 1000])
def test_the_largest_batch_is_found_however_memory_grows(fit, grows, monkeypatch):
    fixed, limit, tried = 100, int(100 + max(fit, 0.5) ** grows * 1000), []

    def attempt(recipe, topology):
        tried.append(recipe.config.train.batch_size // 4)
        needed = int(fixed + tried[-1] ** grows * 1000)
        executable = "" if needed <= limit else None
        sizes = {"parameters": 60, "optimizer": 40}
        return compile.Trial(recipe, None, sizes, 0.0, needed, limit, executable=executable)

    monkeypatch.setattr(compiling, "attempt", attempt)
    best = compiling.largest_batch(tiny_tpu.config().changed(train={"batch_size": 64}), None, 4)
    rows = best.config.train.batch_size // 4 if best else 0
    assert rows <= fit < rows + max(rows // 16, 1) + 1 and len(tried) < 20


# Two programs of a kernel, in the form of libtpu's text, with a loop of 3 turns and one whose end
# is not a constant.
BUNDLES = """\
LB: loop body
     0   :  { %s1 = smov.u32 [#allocation9] }
   0x1 LB: > { %s8 = sadd.s32 1, %s3 /* copy :: iteration index, stage = 0 */ }
   0x2 LB: >> { %v1 = vld [vmem:[%s4] sm:$0xff]  ;;  %s2 = sphi %s8 /* iteration index, stage = 1 */ }
   0x3   : >> { %p1 = scmp.ge.s32.totalorder %s5, 3 /* loop exit test */ }
   0x4   : > { %v2 = vadd.f32 (%p1), %v1, %v1 }
   0x5   : >> { %6 = sbr.rel (!%p1) target = $region1 }
   0x6   :  {}
   0x7 LB: >> { %p2 = scmp.ge.s32.totalorder %s6, %s7 /* loop exit test */ }
   0x8   : > { %p3 = scmp.ge.s32.totalorder %s8, 4 /* loop exit test */ }
   0x9   :  { %v3 = vadd.f32 %v1, %v1 } /* exit bundle
 of more than one line */
"""  # noqa: E501


# The slots that the eleven bundles use: one of each unit, and a second push in the body of the loop
# of 3 turns.
UNITS = "== CAPACITY:\nMATMUL, MATPUSH\n    4     2\n== UTILIZATION:\n" + "".join(
    f"1 {1 + (n == 3)}\n" for n in range(BUNDLES.count(" { ") + BUNDLES.count(" {}"))
)


def test_a_schedule_counts_every_bundle_as_often_as_its_loops_run():
    """A bundle between those of a loop is in it, whatever its mark; stages of programs add two
    turns without work.
    """
    found = schedule.parse(BUNDLES, UNITS)
    # Outside 2; in two programs 4 bundles, and 4 more three times.
    assert found.bundles == 2 + 2 * (4 + 3 * 4)
    # The loop with an end that is no constant has one bundle, in both programs.
    assert found.repeated == 2
    assert found.units == {"MATMUL": 34 / (4 * 34), "MATPUSH": (34 + 6) / (2 * 34)}
    assert schedule.parse(BUNDLES) == schedule.Schedule(34, 2)


# Three programs of a product on two units.
PRODUCTS = """\
     0 LB: > { %s8 = sadd.s32 1, %s3 /* copy :: iteration index, stage = 0 */ ;;  %4 = vmatpush.bf16.msra.mxu0 %v1 }
   0x1   : > { %5 = KIND.gmra.mxu0 %v2 ;;  %6 = vdelay 4 }
   0x2   : > { %7 = KIND.gmra.mxu1 %v2 ;;  %8 = KIND.gmra.mxu1 %v3 }
   0x3   : > { %p3 = scmp.ge.s32.totalorder %s8, 5 /* loop exit test */ }
"""  # noqa: E501


@pytest.mark.parametrize(
    ("kind", "cycles"),
    [
        ("vmatmul.f32", 8),
        ("vmatmul.msk.bf16.vlgmr", 16),
        ("vmatmul.mubr.bf16", 8),
        ("vmatmul.lmr.bf16", 8),
    ],
)
def test_a_schedule_counts_delays_and_how_long_products_keep_a_unit_busy(kind, cycles):
    """Four bundles and four more cycles; three products on two units."""
    found = schedule.parse(PRODUCTS.replace("KIND", kind))
    assert (found.bundles, found.products) == (3 * (4 + 4), 3 * 3 * cycles / 2)


def test_schedules_are_collected_by_operation_and_removed(tmp_path, monkeypatch):
    """Of the folder of the user's flags, which come first, nothing is read or removed."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path}")
    folder = schedule.request_schedules()
    with schedule.collected() as found:
        for name, text in (
            ("17-fusion.2-02-final_bundles", BUNDLES),
            ("18-kernel.3-02-final_bundles", BUNDLES),
            ("18-kernel.3-00-final_hlo-static-per-bundle-utilization", UNITS),
            ("18-kernel.3-01-schedule-analysis_final_bundles", "other"),
        ):
            (folder / f"{name}.txt").write_text(text)
    expected = {"fusion.2": schedule.parse(BUNDLES), "kernel.3": schedule.parse(BUNDLES, UNITS)}
    assert found == expected
    assert not folder.exists() and tmp_path.exists()
    assert schedule.request_schedules() == folder, "libtpu reads the flags only once"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path}")
    with schedule.collected() as none:
        pass
    assert none == {}
