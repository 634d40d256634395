"""`xlnet-jax evaluate --target_share`: joint likelihoods of held-out text with a share of unknown
tokens, by order.

A window is T = `data.segment_len` tokens of a held-out split, without memory. The same share of
each window is unknown, at random places. Windows, places and random orders depend only on T, the
share and the number of windows: two models with the same tokenizer and T predict the same tokens in
the same orders.

    left, reversed   -log p(x_S | x_C) in this order
    random           mean of -log p over K random orders
    log_mean_exp     -log of the mean p over these K orders: the likelihood of their mixture
    best             -log of the largest p of the K orders. The answer chooses the order, so this
                     is not a likelihood; it bounds the gain of any choice of the order
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.estimators import SEED, known_places
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.infer.orders import warn_of_order
from xlnet_jax.library import Model
from xlnet_jax.messages import quantity
from xlnet_jax.objectives import PLM
from xlnet_jax.run.progress import number
from xlnet_jax.storage.files import Json
from xlnet_jax.train import sliding as contexts
from xlnet_jax.train.evaluation import bits_of_text, check_objective, configured, held_out
from xlnet_jax.train.recipe import make_recipe

log = logging.getLogger("xlnet_jax")


def joint(
    workdir: str,
    *,
    target_share: float,
    orders: int = 8,
    windows: int = 64,
    step: int | None = None,
    batch_size: int | None = None,
    overrides: Sequence[str] = (),
) -> Json:
    """Scores windows of the held-out split in which a share of the tokens is unknown.

    Args:
      target_share: unknown share of a window, above 0 and up to 1; at least one token is unknown.
      orders: number of random orders K.
      windows: number of windows of each corpus, evenly spaced; 0 = all.
      batch_size: windows times orders at a time; None = as configured. It does not change the
        result.
      step, overrides: see `evaluate.evaluate`.

    Returns:
      `step`, `windows`, `segment_len`, `target_share` as asked, `tokens` (number of unknown
      tokens), `orders`; and for each name above the values of `in_units`.

    Raises BadInput: see `evaluate.evaluate`; a model that is not of `data.objective=plm`, a corpus
    with less than a window, or a share out of range.
    """
    config, step = configured(workdir, overrides, batch_size, step)
    check_objective(config, PLM, "--target_share", workdir)
    if not 0 < target_share <= 1:
        raise BadInput(f"--target_share={target_share} must be a share above 0 and at most 1")
    make_recipe(config)  # refuses a fine-tuned model before a corpus is opened
    heldout, T = held_out(workdir, config), config.data.segment_len
    tokens_NT = contexts.windows(heldout, T, windows, every=T)
    known_NT = known_places(tokens_NT, target_share)
    tokens, known = tokens_NT.tolist(), known_NT.tolist()
    warn_of_order(config, known, "random")
    equal = {
        "the corpus (sha256)": heldout.sha256,
        "--target_share": target_share,
        "--orders": orders,
        "--windows": windows,
    }
    with opened(Stored(workdir, config, heldout.tokenizer), step, equal) as run:
        log.info(
            "step %d: %s of %s, %d unknown in each, in %d orders, after compiling",
            run.step,
            quantity(len(tokens), "window"),
            quantity(T, "token"),
            (~known_NT[0]).sum(),
            2 + orders,
        )
        size = config.evaluation.batch_size or config.train.batch_size
        model = Model(run.recipe.config, heldout.tokenizer, run.params, size, workdir)
        left = model.log_prob(tokens, known, order="left")
        backwards = model.log_prob(tokens, known, order="reversed")
        several = model.log_prob(tokens, known, orders=orders, seed=SEED, order="random")
    log_probs = {
        "left": [each.joint_K[0] for each in left],
        "reversed": [each.joint_K[0] for each in backwards],
        "random": [each.joint_K.mean() for each in several],
        "log_mean_exp": [each.log_mean_exp for each in several],
        "best": [each.joint_K.max() for each in several],
    }
    unknown_U = tokens_NT[~known_NT]
    return {
        "step": run.step,
        "windows": len(tokens),
        "segment_len": T,
        "target_share": target_share,
        "tokens": len(unknown_U),
        "orders": orders,
        **{
            name: in_units(-np.float64(sum(values)), unknown_U, heldout.tokenizer)
            for name, values in log_probs.items()
        },
    }


def in_units(nats: np.float64, unknown_U: np.ndarray, tokenizer: Tokenizer) -> Json:
    """Divides the summed loss of the unknown tokens by their number, `nats_per_token`, and by the
    length of their text: `bits_per_character`, `bits_per_byte`. Low is good.
    """
    counts_V = np.bincount(unknown_U, minlength=len(tokenizer.pieces))
    bits = bits_of_text(nats, counts_V, tokenizer)
    del bits["bits_per_word"]
    return {"nats_per_token": number(nats / len(unknown_U)), **bits}
