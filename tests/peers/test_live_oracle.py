"""The model against Hugging Face `transformers` itself, on shapes, ranks, lengths and directions
that nobody chose.

The recordings of `tests/oracle` are the same comparison on chosen cases, without that library.
Needs torch and transformers; without them this file is skipped.
"""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from oracle import generate, replay
from oracle.replay import SEGMENTS, Arrays, Case

from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.score import Scorer
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.train.loss import LanguageModel

VOCABULARY = 20


def row(rng: np.random.Generator, length: int, slots: int) -> Arrays:
    """One row of one segment, with ranks of no particular kind.

    Context and targets mix freely, ties among the context included. The other side has one mask for
    both streams, so no target shares its rank, and a target that sees nothing at all would see
    everything: one position is context of the lowest rank. A single position is a target that sees
    the memory alone.
    """
    lowest, *others = rng.permutation(length)
    positions = np.sort(others[:slots] or [lowest])
    rank = 2 * rng.integers(0, length, length)
    rank[lowest] = -2
    rank[positions] = 2 * rng.permutation(length)[: len(positions)] + 1
    equal_or_lower = rank[None, :] <= rank[:, None]
    lower = rank[None, :] < rank[:, None]
    target = np.isin(np.arange(length), positions)
    return dict(
        tokens=rng.integers(0, VOCABULARY, length),
        segments=rng.integers(0, 3, length),
        rank=rank,
        padding=np.zeros(length, bool),
        hidden=~np.where(target[:, None], lower, equal_or_lower),
        target_positions=positions,
        target_weights=(rng.random(len(positions)) < 0.7) * 1.0,
    )


# Few choices and a seed, not the arrays themselves: hypothesis makes examples out of earlier ones,
# and out of long ones makes copies that differ in a token.
CASES = st.builds(
    Case,
    vocab_size=st.just(VOCABULARY),
    layers=st.integers(1, 3),
    width=st.sampled_from([4, 8, 12]),
    heads=st.sampled_from([1, 2]),
    ff_width=st.integers(3, 9),
    activation=st.sampled_from(["gelu", "gelu_erf", "relu"]),
    tied=st.booleans(),
    clamp_len=st.sampled_from([-1, 2, 5, 9]),
    memory_len=st.integers(0, 20),
    reuse_len=st.sampled_from([None, *range(1, 12)]),
    direction=st.sampled_from(
        [(1,), (-1,), (1, 1), (1, -1), (-1, 1), (-1, -1), (-1, 1, -1), (1, -1, -1)]
    ),
    segments=st.sampled_from([True, True, False]),
    two_streams=st.sampled_from([True, True, False]),
)


def draw_inputs(case: Case, rng: np.random.Generator, length: int, slots: int) -> Arrays:
    drawn = [[row(rng, length, slots) for _ in case.direction] for _ in range(SEGMENTS)]
    fed = {
        name: np.stack([[row[name] for row in segment] for segment in drawn])
        for name in drawn[0][0]
    }
    if not case.segments:
        fed["segments"][:] = 0
    fed["target_weights"][:, 0, 0] = 1  # no target at all: the other side's loss is a NaN
    return fed | {"direction": np.array(case.direction)}


# Every example compiles a program of its own, so there are few, and a failure is not shrunk but
# shown.
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    case=CASES,
    length=st.just(1) | st.integers(5, 11),
    slots=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_equals_the_other_side(case, length, slots, seed):
    if length == 1:
        case = dataclasses.replace(case, memory_len=max(case.memory_len, 1))
    rng = np.random.default_rng(seed)
    fed, weights = draw_inputs(case, rng, length, slots), generate.draw_weights(case, seed)
    recorded = generate.record(case, weights, fed)
    with jax.enable_x64(True):
        found = replay.run(case, weights, recorded, "float64")
    assert not replay.too_large(replay.errors(case, weights, recorded, found), "float64")


def test_the_likelihood_of_a_single_unknown_token():
    """`perm_mask` hides one position of the text from all, `target_mapping` asks for it: `Scorer`
    gives the same.
    """
    case, rng = Case(vocab_size=VOCABULARY, memory_len=0), np.random.default_rng(5)
    weights = generate.draw_weights(case, 1)
    peer, n = generate.Peer(case, weights), 9
    tokens = rng.integers(0, VOCABULARY, n)
    arguments = dict(
        input_ids=torch.tensor(tokens).repeat(n, 1),
        token_type_ids=torch.zeros(n, n).long(),
        perm_mask=torch.eye(n).double()[:, None, :].repeat(1, n, 1),
        target_mapping=torch.eye(n).double()[:, None, :],
    )
    with torch.no_grad():
        logits_NV = peer.model(**arguments, use_mems=False).logits[:, 0]
    expected = torch.log_softmax(logits_NV, dim=1)[torch.arange(n), torch.tensor(tokens)].numpy()
    with jax.enable_x64(True):
        model = LanguageModel(XLNet(replay.model_config(case, "float64")))
        scorer = Scorer(model, replay.our_parameters(case, weights, "float64"), XLNET, n)
        found = scorer.log_prob([(tokens, known_N) for known_N in ~np.eye(n, dtype=bool)], Score())
    np.testing.assert_allclose([each.joint_K[0] for each in found], expected, atol=1e-9)
