"""The package asks a member and an objective for what it needs to know; their names are nowhere
compared.
"""

import ast
import pathlib

import pytest

import xlnet_jax
from xlnet_jax.config import Config, check
from xlnet_jax.data.batches.examples import BUILDERS
from xlnet_jax.infer.estimators import MEASURES
from xlnet_jax.members import MEMBERS
from xlnet_jax.objectives import OBJECTIVES, PREFIX

ROOT = pathlib.Path(xlnet_jax.__file__).parent
HOMES = {"members": MEMBERS, "objectives": [*OBJECTIVES, PREFIX.name]}
SOURCES = sorted(ROOT.rglob("*.py"))


def asked(source: str, home: str = "") -> list[tuple[int, str]]:
    """(line, name) of each name that is not at `home` here, in a comparison, a case of `match`, a
    set or a key of a dictionary.
    """
    found, names = [], {name for folder, names in HOMES.items() if folder != home for name in names}
    for node in ast.walk(ast.parse(source)):
        parts: list = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key]
        # `in ("bert", "albert")` is a tuple in a comparison.
        parts += [
            each for part in parts if isinstance(part, ast.Tuple | ast.List) for each in part.elts
        ]
        found += [
            (x.lineno, x.value) for x in parts if isinstance(x, ast.Constant) and x.value in names
        ]
    return sorted(set(found))


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_no_member_and_no_objective_is_asked_for_its_name(path):
    assert asked(path.read_text(encoding="utf-8"), path.parent.name) == []


def test_a_name_in_a_question_is_found():
    questions = [
        'x == "bert"',
        '"gpt2" != x',
        'x in ("xlnet", 3)',
        'x in {"albert"}',
        '{"roberta": 1}',
        'match x:\n    case "bert":\n        pass',
        'x == "mdm"',
        '{"prefix": f}',
        'x not in ("plm", y)',
    ]
    assert [len(asked(question)) for question in questions] == [1] * len(questions)
    assert not asked('x == "mdm"', "objectives") and asked('x == "mdm"', "members")
    assert not asked('x = "bert"\ny == "BERT"\nf("xlnet", ["gpt2"])\n{"pages": "albert"}')


@pytest.mark.parametrize("name", MEMBERS)
def test_the_usual_keys_of_each_objective_go_together(name):
    """But for XLNet's own, which has the defaults."""
    for objective in {*MEMBERS[name].objectives} - {"plm"}:
        config = Config().changed(**MEMBERS[name].usual(32, objective))
        check(config)
        assert config.model.member.name == name and config.data.objective == objective
        recurrent = objective == "clm" and "memory_len" not in config.model.member.required
        assert (config.model.memory_len > 0) == recurrent


def test_each_has_its_own_name():
    assert (
        list(MEMBERS) == [member.name for member in MEMBERS.values()]
        and len({*map(id, MEMBERS.values())}) > 5
    )


def test_each_objective_is_complete():
    """Its examples are made, and what it can be asked for is measured."""
    declared = [*OBJECTIVES.values()]
    assert len(declared) > 3 and [*OBJECTIVES] == [objective.name for objective in declared]
    assert {objective.examples for objective in declared} == {*BUILDERS}
    assert {measure for objective in declared for measure in objective.measures} == {*MEASURES}
    for objective in declared:
        member = next(member for member in MEMBERS.values() if objective.name in member.objectives)
        assert member.parts_of(objective).targets == objective.stream in ("query", "content")
        assert (
            objective.likelihood in ("exact", "pseudo", "bound")
            and objective.causal + objective.masks < 2
        )
        tokens, what = objective.shortest(Config())
        assert tokens > 0 and what
