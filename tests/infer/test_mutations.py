"""Mutants against the wild type, from the likelihoods of their positions in every order."""

import dataclasses
import itertools
import math

import data_fixtures
import numpy as np
import pages
import pytest
import tiny

import xlnet_jax as xj
from xlnet_jax.data import vocabulary
from xlnet_jax.errors import BadInput
from xlnet_jax.library import Model

WILD = "ACDAGCCA"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A permutation model over the characters of proteins."""
    path = str(tmp_path_factory.mktemp("mutations") / "vocabulary.json")
    counts = vocabulary.count(["ACDEFGHIKLMNPQRSTVWY"], "characters")
    vocabulary.write_counted(path, "characters", counts, None, True)
    tokenizer = vocabulary.open_tokenizer(path)
    config = tiny.config(model={"memory_len": 0}).changed(
        model={"vocab_size": tokenizer.vocab_size}, data={"factorization_order": "uniform"}
    )
    return Model(config, tokenizer, tiny.random_params(config, 0.4), 16)


def joint(model, text, places, order):
    """log p of the characters at some places given the others, in an order of the places."""
    ids = model.tokenizer.encode(text)
    known = np.isin(np.arange(len(text)), places, invert=True)
    (found,) = model.log_prob([ids], [known], order=list(order))
    return found.joint_K[0]


@pytest.mark.parametrize("mutation", ["C2W", "A1G:G5A", "D3E:C7W:A8K"])
def test_a_mutant_is_compared_with_the_wild_type_in_the_same_orders(model, mutation):
    """Each of the K values is the value of one order for both texts, so the mean over many orders
    comes near the mixture of all orders, which the test computes order by order.
    """
    places, text = [int(part[1:-1]) - 1 for part in mutation.split(":")], list(WILD)
    for part, place in zip(mutation.split(":"), places, strict=True):
        text[place] = part[-1]
    pairs = [
        tuple(joint(model, each, places, order) for each in ("".join(text), WILD))
        for order in itertools.permutations(places)
    ]
    K = 64
    first, found = model.mutations(WILD, ["A4A", mutation], orders=K)
    assert first.log_ratio == first.standard_error == 0
    assert found.mutant.position_U.tolist() == places
    drawn = np.array([*zip(found.mutant.joint_K, found.wild.joint_K, strict=True)])
    nearest = np.abs(drawn[:, None] - np.array(pairs)[None]).sum(axis=2)
    assert nearest.min(axis=1).max() < 1e-3, "the mutant and the wild type have other orders"
    assert len({*nearest.argmin(axis=1).tolist()}) == len(pairs)
    means = [math.log(np.exp(drawn[:, side]).mean()) for side in (0, 1)]
    assert found.log_ratio == pytest.approx(means[0] - means[1], abs=1e-4)
    mutant_Z, wild_Z = np.exp(pairs).T
    exact = math.log(mutant_Z.mean() / wild_Z.mean())
    if len(places) == 1:
        assert found.log_ratio == pytest.approx(exact, abs=1e-4)
        assert found.standard_error == pytest.approx(0, abs=1e-4)
        return
    spread = (mutant_Z / mutant_Z.mean() - wild_Z / wild_Z.mean()).std() / math.sqrt(K)
    assert found.standard_error == pytest.approx(spread, rel=0.3) and spread > 1e-3
    assert abs(found.log_ratio - exact) < 4 * found.standard_error


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        ("D2W", "'D2W' is no change of a character of the text; write A42G if its 42nd"),
        ("A0G", "'A0G' is no change"),
        ("A9G", "'A9G' is no change"),
        ("A1G:A1C", "'A1C' is no change"),
        ("C2", "'C2' is no change"),
        ("", "'' is no change"),
        ("C2Z", "mutation 'C2Z': character 'Z' (U+005A) is not in the vocabulary"),
        ("C2c", "mutation 'C2c': character 'c' (U+0063) is not in the vocabulary"),
        ("A8 ", "mutation 'A8 ': character ' '"),
        (None, "text 2: NoneType where a string is expected"),
    ],
)
def test_a_mutation_that_does_not_fit_is_one_line(model, mutation, message):
    with pytest.raises(BadInput) as raised:
        model.mutations(WILD, ["C2W", mutation])
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert model.mutations(WILD, []) == []


def test_pieces_that_are_no_characters_are_refused(model):
    """Also where there are as many of them by chance: the space before the word is a piece."""
    other = dataclasses.replace(model, tokenizer=data_fixtures.tokenizer())
    assert len(other.tokenizer.encode("a21")) == 3
    for text in ("a21", "Bado kilu"):
        with pytest.raises(BadInput, match="^the text: its characters are not the pieces"):
            other.mutations(text, [])
    with pytest.raises(BadInput, match="^the text: character ' '"):
        model.mutations(" AC", [])
    with pytest.raises(BadInput, match="put it into a list"):
        model.mutations(WILD, "C2W")
    of_bytes = dataclasses.replace(model, tokenizer=data_fixtures.tokenizer_of("bytes"))
    assert of_bytes.mutations(data_fixtures.ALPHABET[:4], []) == []


def test_the_recipe_of_the_page_prints_as_many_lines_as_it_shows(model, monkeypatch):
    page = tiny.ROOT / "docs" / "proteins_molecules.md"
    ((program, output),) = pages.sessions(page.read_text(encoding="utf-8"))
    assert 5 < len(program.splitlines()) <= 12
    T = {name: 128 for name in ("segment_len", "reuse_len", "num_predict")}
    longer = Model(model.config.changed(data=T), model.tokenizer, model.params, 16)
    monkeypatch.setattr(xj, "load", {"runs/proteins/plm/0": longer}.__getitem__, raising=False)
    assert pages.printed(program, {}).count("\n") == output.count("\n") > 3
