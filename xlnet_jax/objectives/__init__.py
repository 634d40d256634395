"""The objectives, one object for each value of `data.objective`: data alone, without jax.

                     plm                  clm        mlm                  mdm
    predicts from    query stream         content    content              content
    a token sees     earlier tokens       the past   all                  all
                     in any order
    an example is    A SEP B SEP CLS,     text       CLS A SEP B SEP,     text; with positions at
                     or text                         or CLS text SEP      the input CLS text SEP
    likelihood       exact, any order,    exact      pseudo, a call       bound, and exact with
                     in one call                     for each token       a call for each token

A module reads the fields of an objective (`Config.objective`), never its name. So a new objective
is a new object here, such as one of these with some fields changed. If its examples are of a new
kind, it also needs a row of `data.batches.examples.BUILDERS`.
"""

from typing import Any

from xlnet_jax.objectives.objective import Objective, Rules


def whole_text_rules(config: Any, where: str = "") -> Rules:
    """Returns the rules of fresh text, between CLS and SEP if framed, that may all be targets."""
    data, special = config.data, 2 * config.objective.framed[config.model.member.bounded]
    where = where or f"data.objective={data.objective}"
    fresh, less = data.segment_len - special, f" - {special}" * (special > 0)
    must = f"must be data.segment_len{less} = {fresh} with {where}"
    return [
        ("data.reuse_len", data.reuse_len == fresh, must),
        ("data.num_predict", data.num_predict == fresh, must),
    ]


def target_rules(config: Any, least: int) -> Rules:
    """Returns the rules of targets predicted from their context, at least `least` of them."""
    slots, most = config.data.num_predict, (config.data.segment_len - 3) // 2
    return [
        ("data.segment_len", most >= 1, "must be at least 5"),
        ("data.num_predict", slots >= least, f"must be at least {least}"),
        (
            "data.num_predict",
            slots <= most or most < 1,
            (
                "leaves too little context in "
                f"data.segment_len={config.data.segment_len}; use at most {most}"
            ),
        ),
    ]


def masked_rules(config: Any) -> Rules:
    """Returns the rules of segments without memory, with A and B if objective and member permit."""
    data, member, where = (
        config.data,
        config.model.member,
        f"data.objective={config.data.objective}",
    )
    pairs = not member.bounded or (member.segments > 1 and not config.objective.whole)
    return [
        (
            "data.pairs",
            data.pairs == "none" or pairs,
            (
                f"must be none with model.architecture={member.name} "
                f"and {where}: its text has no A and B"
            ),
        ),
        (
            "data.sentence_loss",
            not data.sentence_loss or (data.pairs != "none" and not config.objective.whole),
            "needs texts A and B; use data.objective=mlm with data.pairs=next or order",
        ),
        (
            "model.memory_len",
            config.model.memory_len == 0,
            f"must be 0 with {where}: its examples do not follow each other",
        ),
    ]


def length_with_random_b(config: Any, reuse_len: int) -> tuple[int, str]:
    """Returns the length of the shortest text with room for a random B outside its row's memory,
    reuse window, A and B.
    """
    budget = config.data.segment_len - reuse_len - 3
    return (
        config.model.memory_len + reuse_len + 4 * budget,
        "an example with its memory and a random text B",
    )


def plm_rules(config: Any) -> Rules:
    """Returns the rules of segments with A and B, or of other orders (`data.batches.orders`)."""
    data, least = config.data, config.data.reuse_len + 5
    if data.factorization_order != "spans":
        return whole_text_rules(config, f"data.factorization_order={data.factorization_order}")
    return [
        (
            "data.segment_len",
            data.segment_len >= least,
            (
                f"is too short for data.reuse_len={data.reuse_len}: A, SEP, B, SEP and CLS need 5 "
                f"more tokens; use at least {least}"
            ),
        ),
        *target_rules(config, 2),  # a target in each half
    ]


def mlm_rules(config: Any) -> Rules:
    """Returns the rules of examples with A and B, or with `data.pairs=none`."""
    data, special = config.data, 3 - (config.data.pairs == "none")
    fresh = data.segment_len - special
    return [
        (
            "data.short_rate",
            not (special == 2 and data.short_rate),
            "is for whole sentences; use 0 with data.pairs=none",
        ),
        (
            "data.spans",
            data.spans != "pieces" or not config.model.member.bounded,
            f"is not for model.architecture={config.model.architecture}; use words or random",
        ),
        (
            "data.reuse_len",
            data.reuse_len == fresh,
            (
                f"must be data.segment_len - {special} = {fresh} with "
                f"data.objective={data.objective} and data.pairs={data.pairs}"
            ),
        ),
        *target_rules(config, 1),
        *masked_rules(config),
    ]


def prefix_rules(config: Any) -> Rules:
    """Returns the rules of the task `text_to_text`."""
    most, pieces = config.data.segment_len - 3, config.model.pieces
    return [
        (
            "model.memory_len",
            config.model.memory_len == 0,
            "must be 0 with finetune.task=text_to_text: its texts are in one segment",
        ),
        (
            "finetune.max_answer",
            config.finetune.max_answer <= most,
            (
                "leaves no room for a source in "
                f"data.segment_len={config.data.segment_len}; use at most {most}"
            ),
        ),
        (
            "finetune.beam",
            config.finetune.beam <= pieces,
            f"is more than model.vocab_size={pieces}, the number of possible first pieces",
        ),
    ]


PLM = Objective(
    "plm",
    plm_rules,
    lambda config: (
        length_with_random_b(config, config.data.reuse_len)
        if config.data.factorization_order == "spans"
        else (config.data.segment_len, "a segment")
    ),
    stream="query",
)
"""Permutation language modelling: any order (XLNet)."""
CLM = Objective(
    "clm",
    whole_text_rules,
    lambda config: (
        config.data.segment_len + config.data.multi_token_prediction,
        "a segment with its targets",
    ),
    examples="causal",
    causal=True,
    whole=True,
    measures=("left_to_right",),
)
"""Causal language modelling (Transformer-XL, GPT-2)."""
PREFIX = CLM._replace(name="prefix", rules=prefix_rules)
"""Objective of the task `text_to_text`, where each token of a source sees the whole source. It is
no value of `data.objective`.
"""
MLM = Objective(
    "mlm",
    mlm_rules,
    lambda config: (
        (config.data.segment_len, "an example")
        if config.model.member.bounded
        else length_with_random_b(config, 0)
    ),
    examples="masked",
    masks=True,
    framed=(True, True),
    likelihood="pseudo",
)
"""Masked language modelling: targets are corrupted, and predicted independently (BERT)."""
MDM = Objective(
    "mdm",
    lambda config: masked_rules(config) + whole_text_rules(config),
    lambda config: (config.data.reuse_len, "a segment"),
    examples="diffused",
    masks=True,
    framed=(False, True),
    whole=True,
    likelihood="bound",
    measures=("left_to_right", "half", "pseudo", "bound"),
)
"""Masked diffusion: any number of tokens is masked, and each is predicted from all others
(LLaDA).
"""

OBJECTIVES = {objective.name: objective for objective in (PLM, CLM, MLM, MDM)}
"""Objectives by `data.objective`."""
