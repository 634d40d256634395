"""BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT against Hugging Face `transformers` itself, on
configurations that nobody chose.

Logits of every head, each loss and every gradient, in float64, with padding, all activations and
dropout 0. Needs torch and transformers; without them this file is skipped.
"""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from oracle import families, families_generate

CASES = [(family, seed) for family in families.FAMILIES for seed in range(12)]
# `test_live_modernbert.py` draws others: here each of its six tasks once.
CASES = [case for case in CASES if case[0] != "modernbert" or 0 < case[1] < 7]


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_equals_the_other_side(family, seed, x64):
    """Each configuration as the class of pretraining, and as that of one task in turn."""
    tasks = families.TASKS_OF[family]
    for task in dict.fromkeys(("none", tasks[seed % len(tasks)])):
        config = families.draw(family, seed, task)
        weights, fed = families.draw_weights(config, seed), families.draw_inputs(config, seed)
        theirs = families_generate.run(config, weights, fed)
        ours = families.run(config, weights, fed)
        errors = families.error(ours, theirs, fed["real"])
        assert not {name: error for name, error in errors.items() if not error < 1e-9}, (
            config.model,
            task,
        )
