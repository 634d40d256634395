"""Command lines made at random end in one line; see `fuzz_commands`, which `make prove` runs for
longer.
"""

import fuzz_commands


def test_a_few_random_commands_end_with_0_2_or_42(tmp_path, monkeypatch, pytestconfig):
    world = fuzz_commands.World(tmp_path, str(pytestconfig.cache.mkdir("xla")))
    monkeypatch.chdir(tmp_path)
    ended = {}
    for number in range(12):
        words = fuzz_commands.draw(world, number, seed=3)
        code, out, err = fuzz_commands.run_here(words)
        assert fuzz_commands.fault(words, (code, out, err)) is None, words
        ended[code] = ended.get(code, 0) + 1
    assert ended[0] >= 2 and ended[2] >= 2, "neither all good nor all bad"
