"""Texts cut by a pattern: as Python's own expressions cut them; what is refused."""

import pathlib
import random
import re

import pytest

from xlnet_jax.data.patterns import SMILES, Unseen, cutter
from xlnet_jax.errors import BadInput

PARTS = (
    "C c N n O o S s P p F I B Br Cl b [nH] [C@@H] [Na+] ( ) . = # - + \\ / : ~ @ ? > * $ %12 1 9"
)


def test_smiles_are_cut_into_atoms_and_bonds_as_pythons_expressions_cut_them():
    atoms = cutter(SMILES)("CC(=O)Nc1ccc(Cl)c%12[nH]Br.[Na+]")
    assert " ".join(atoms) == "C C ( = O ) N c 1 c c c ( Cl ) c %12 [nH] Br . [Na+]"
    rng, parts, covered = random.Random(0), [*PARTS.split(), "%", "[", "]", "é", "X", "r"], 0
    for _ in range(500):
        text = "".join(
            rng.choices(parts, [20] * (len(parts) - 6) + [1] * 6, k=rng.randrange(1, 30))
        )
        wanted = [match[0] for match in re.finditer(SMILES, text)]
        if "".join(wanted) == text:
            covered += 1
            assert cutter(SMILES)(text) == wanted
        else:
            with pytest.raises(Unseen, match="does not match"):
                cutter(SMILES)(text)
    assert 300 < covered < 480


def test_the_page_names_the_pattern_of_smiles():
    page = pathlib.Path(__file__).parents[2] / "docs" / "data.md"
    assert f"`{SMILES}`" in page.read_text()


def test_a_line_end_is_a_piece_unless_a_match_has_it():
    assert cutter("a|b")("a\nb\n\n") == ["a", "\n", "b", "\n", "\n"]
    assert cutter("[^a]+|a")("ba\nb") == ["b", "a", "\nb"]
    assert cutter("a")("") == []


def test_the_first_part_that_is_not_matched_is_named():
    with pytest.raises(Unseen, match=r"^pattern 'a\|b' does not match 'xé' of 'abxéay'$"):
        cutter("a|b")("abxéay")
    with pytest.raises(Unseen, match="does not match 'x' of 'ax'"):
        cutter("a|b")("ax")
    with pytest.raises(Unseen, match="does not match 'a' of 'a'"):
        cutter("(?!)")("a")


def test_a_pattern_with_too_many_ways_to_match_is_refused():
    """The library panics, and a panic is no Exception."""
    with pytest.raises(Unseen, match=r"^pattern .* takes too long on 'C+!' \(.*retry-limit"):
        cutter("(C+)+O|C|!")("C" * 40 + "!")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "does not compile .*; correct --pattern"),
        ("a)(b", "does not compile"),
        ("a\\", "does not compile"),
        ("", "matches the empty string"),
        ("a*", "matches the empty string"),
        ("a|b?", "matches the empty string"),
        ("a|$", "matches the empty string"),
    ],
)
def test_what_is_no_pattern_of_a_piece_is_refused(pattern, message):
    with pytest.raises(BadInput, match=f"^pattern {re.escape(repr(pattern))} {message}"):
        cutter(pattern)
