"""Schedules of kernels, read from texts in the form of libtpu's; `tests/aot/` has libtpu."""

from xlnet_jax.aot import schedule

# Two programs of a kernel, in the form of libtpu's text, with a loop of 3 turns and one whose end is not a constant.
BUNDLES = """\
LB: loop body
     0   :  { %s1 = smov.u32 [#allocation9] }
   0x1 LB: > { %s2 = sadd.s32 1, %s3 /* iteration index, stage = 1 */ }
   0x2 LB: >> { %v1 = vld [vmem:[%s4] sm:$0xff] }
   0x3   : >> { %p1 = scmp.ge.s32.totalorder %s5, 3 /* loop exit test */ }
   0x4   : > { %v2 = vadd.f32 (%p1), %v1, %v1 }
   0x5   : >> { %6 = sbr.rel (!%p1) target = $region1 }
   0x6   :  {}
   0x7 LB: >> { %p2 = scmp.ge.s32.totalorder %s6, %s7 /* loop exit test */ }
   0x8   : > { %p3 = scmp.ge.s32.totalorder %s8, 4 /* loop exit test */ }
   0x9   :  { %v3 = vadd.f32 %v1, %v1 } /* exit bundle
 of more than one line */
"""


def test_a_schedule_counts_every_bundle_as_often_as_its_loops_run():
    """A bundle between those of a loop is in it, whatever its mark; the stages add two turns that do no work."""
    # Outside 2; in two programs 4 bundles, and 4 more three times.
    assert schedule.bundles(BUNDLES) == 2 + 2 * (4 + 3 * 4)


def test_schedules_are_collected_by_kernel_and_removed(tmp_path, monkeypatch):
    """Of the folder of the user's flags, which come first, nothing is read or removed."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path}")
    folder = schedule.prepare()
    with schedule.collected() as found:
        for name in ("17-fusion.2-01", "18-xlnet_attention_forward.3-00"):
            (folder / f"{name}-final_bundles.txt").write_text(BUNDLES)
        (folder / "18-xlnet_attention_forward.3-01-schedule-analysis_final_bundles.txt").write_text("other")
    assert found == {"xlnet_attention_forward.3": schedule.bundles(BUNDLES)}
    assert not folder.exists() and tmp_path.exists()
    assert schedule.prepare() == folder, "libtpu reads the flags only once"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path}")
    with schedule.collected() as none:
        pass
    assert none == {}
