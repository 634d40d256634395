"""Examples of BERT, RoBERTa and ALBERT: layout and padding, whole sentences of a document, targets,
corruption.
"""

import numpy as np
import pytest
import tiny
from special_ids import CLS, MASK, PAD, SEP

from xlnet_jax import config as configs
from xlnet_jax.batch import NEVER
from xlnet_jax.config import Config
from xlnet_jax.data.batches import examples, spans
from xlnet_jax.data.batches.stream import PlanEntry
from xlnet_jax.errors import BadInput

FIRST = 1000
T, BUDGET, ROWS = 64, 61, np.arange(64)


class Documents(tiny.Words):
    """Token i is FIRST + i, so it tells where it came from; sentences of 2 to 19 tokens, documents
    of 1 to 29 of these.
    """

    def __init__(self, tokens=20_000, seed=0, longest=20, documents=30):
        rng = np.random.default_rng(seed)
        self.tokens, self.text = tokens, FIRST + np.arange(tokens, dtype=np.int32)
        sentence = np.cumsum(rng.integers(2, longest, tokens)) - 2
        sentence = np.concatenate([[0], sentence[sentence < tokens]])
        document = np.concatenate([[0], np.cumsum(rng.integers(1, documents, len(sentence)))])
        self.starts = np.isin(np.arange(tokens), sentence)
        self.document_starts = np.isin(
            np.arange(tokens), sentence[document[document < len(sentence)]]
        )
        self.document = np.cumsum(self.document_starts)
        self.tokenizer = tiny.Vocabulary(np.append(rng.random(FIRST + tokens) < 0.7, True)[:-1])


TEXT = Documents()


def config(architecture="bert", compat="", **data):
    """Of 64 tokens."""
    none = data.get("pairs", "none" if architecture == "roberta" else "next") == "none"
    layout = {"pairs": "none"} if architecture == "roberta" else {}
    layout |= {
        "segment_len": T,
        "reuse_len": T - 2 if none else T - 3,
        "num_predict": 12,
        "windows_per_block": 2,
        "bidirectional": False,
        "objective": "mlm",
        "spans": "random",
    }
    return tiny.config(
        model={"architecture": architecture, "memory_len": 0},
        data=layout | data,
        compat={"switches": compat},
    )


def batches(settings, steps=range(4), rows=ROWS, text=TEXT):
    stream = tiny.mixture(text).stream(settings)
    for step in steps:
        where = stream.locate(step, rows, (PlanEntry(0, 0, len(ROWS)),))
        yield examples.build(
            examples.ExampleBuilder(text, text.tokenizer, settings, where, "train", step, rows)
        )


def original(batch):
    """The tokens before the targets were corrupted."""
    tokens = batch.tokens.copy()
    row, slot = np.nonzero(batch.target_weights)
    tokens[row, batch.target_positions[row, slot]] = batch.target_tokens[row, slot]
    return tokens


def pairs(settings, **kwargs):
    """Of each row the positions in the text of A and B, and the label, None without one."""
    for batch in batches(settings, **kwargs):
        for row, tokens in enumerate(original(batch)):
            seps = np.flatnonzero(tokens == SEP)
            a, b = tokens[1 : seps[0]] - FIRST, tokens[seps[0] + 1 : seps[-1]] - FIRST
            yield a, b, int(batch.label[row]) if batch.label_weight[row] else None


@pytest.mark.parametrize(("architecture", "kind"), [("bert", "next"), ("albert", "order")])
def test_cls_is_first_and_padding_last_which_nothing_sees_or_predicts(architecture, kind):
    padded = 0
    for batch in batches(config(architecture, pairs=kind, short_rate=0.3)):
        tokens, used = original(batch), batch.rank == 0
        assert (np.diff(used.astype(int), axis=1) <= 0).all(), "padding is last"
        assert (batch.rank[~used] == NEVER).all()
        np.testing.assert_array_equal(tokens == PAD, ~used)
        assert (tokens[:, 0] == CLS).all() and not batch.summary_position.any()
        assert (batch.direction == 1).all()
        end = used.sum(axis=1)
        assert (tokens[np.arange(len(end)), end - 1] == SEP).all()
        seps = (tokens == SEP).sum(axis=1)
        assert (seps <= 2).all() and (kind == "order" or (seps == 2).all())
        # Segment 1 is B and its SEP.
        before = np.cumsum(tokens == SEP, axis=1) - (tokens == SEP)
        np.testing.assert_array_equal(batch.segments, (before == 1) & used)
        weighed = batch.target_weights > 0
        assert np.take_along_axis(used, batch.target_positions, 1)[weighed].all()
        assert (batch.target_tokens[weighed] >= FIRST).all()
        padded += (~used).sum()
    assert padded


def is_whole(part, text=TEXT):
    return text.starts[part[0]] and text.starts[(part[-1] + 1) % text.tokens]


@pytest.mark.parametrize("kind", ["next", "order"])
def test_a_and_b_are_whole_sentences_of_one_document_or_of_two(kind):
    labels, cut, whole, lengths = [], 0, 0, []
    for a, b, label in pairs(config("albert" if kind == "order" else "bert", pairs=kind)):
        assert len(a) and len(a) + len(b) <= BUDGET
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        documents = [set(TEXT.document[part]) for part in (a, b) if len(part)]
        assert all(len(each) == 1 for each in documents), "the end of a document is crossed"
        lengths.append(len(a) + len(b))
        parts_are_whole = is_whole(a) and (not len(b) or is_whole(b))
        if lengths[-1] < BUDGET:
            assert parts_are_whole, "only what does not fit is cut"
            whole += 1
        else:
            cut += not parts_are_whole
        if label is None:
            assert kind == "order" and not len(b)
            continue
        labels.append(label)
        if kind == "next":
            assert (documents[0] == documents[1]) == label
            assert not label or a[-1] < b[0]
        else:
            assert documents[0] == documents[1] and (a[-1] < b[0]) == label
    assert cut > 20 and whole > 20 and np.mean(lengths) > 0.75 * BUDGET
    sure = 4 * 0.5 / len(labels) ** 0.5
    # A single sentence has no text behind it, so its B is from elsewhere.
    least = 0.5 - sure if kind == "order" else 0.3
    assert least < np.mean(labels) < 0.5 + sure


def test_text_that_does_not_fit_is_lost_at_the_front_and_the_end_of_the_longer():
    """Both sides of A and B lose pieces, and on average equally many."""
    text = Documents(seed=2, longest=60, documents=60)
    front, back = [], []
    for a, b, _ in pairs(config(), steps=range(6), text=text):
        if len(a) + len(b) == BUDGET:
            for part in (a, b):
                front.append(part[0] - np.flatnonzero(text.starts[: part[0] + 1]).max())
                back.append(np.append(text.starts, True)[part[-1] + 1 :].argmax())
            # The shorter one loses nothing.
            assert abs(len(a) - len(b)) <= 1 or is_whole(min(a, b, key=len), text)
    lost = np.sum(front) + np.sum(back)
    assert np.count_nonzero(front) > 100
    assert abs(np.sum(front) - lost / 2) < 4 * lost**0.5 / 2, "each piece by a fair coin"


def test_some_texts_are_shorter():
    text, short = Documents(seed=3, longest=4, documents=10_000), {}
    for rate in (0.0, 0.3):
        settings = config(short_rate=rate, positive_pair_rate=1.0)
        sizes = [len(a) + len(b) for a, b, _ in pairs(settings, steps=range(8), text=text)]
        short[rate] = np.array([size for size in sizes if size < BUDGET - 4])
    share = len(short[0.3]) / len(sizes)
    # Of targets uniform from 2 to the budget, those whose sentences reach the full length are not
    # seen as short.
    sure = 4 * (0.3 * 0.7 / 512) ** 0.5
    assert not len(short[0.0])
    assert 0.3 - sure < share + 0.3 * 6 / (BUDGET - 1) < 0.3 + 2 * sure
    assert short[0.3].min() < 8 and 0.4 < short[0.3].mean() / BUDGET < 0.6


def test_b_is_from_every_other_document_and_its_first_sentences_are_no_sign():
    text = Documents(tokens=3000, seed=4)
    others, opens = set(), []
    for _, b, label in pairs(config(), steps=range(30), text=text, rows=np.arange(16)):
        if not label:
            others.add(text.document[b[0]])
            opens.append(text.document_starts[b[0]])
    assert len(others) > 0.9 * text.documents and np.mean(opens) < 0.4


def test_a_document_without_end_in_sight_and_sentences_that_no_window_holds():
    text = Documents(tokens=9000, seed=5)
    text.document_starts[:] = False
    text.document_starts[[0, 8000]] = True
    text.starts = text.document_starts.copy()
    for a, b, label in pairs(config(), text=text):
        assert label == 0 and len(a) + len(b) == BUDGET
        assert not set(a) & set(b)


@pytest.mark.parametrize("kind", ["next", "order", "none"])
def test_an_example_is_a_function_of_step_and_row(kind):
    settings = config("albert", pairs=kind, short_rate=0.2 * (kind != "none"))
    (whole,) = batches(settings, steps=[3])
    (some,) = batches(settings, steps=[3], rows=ROWS[5:60:7])
    for name, value in vars(some).items():
        if value is not None:
            np.testing.assert_array_equal(value, getattr(whole, name)[5:60:7], err_msg=name)


@pytest.mark.parametrize("architecture", ["roberta", "bert"])
def test_packed_text_is_the_window_across_documents(architecture):
    settings = config(architecture, pairs="none")
    stream = tiny.mixture(TEXT).stream(settings)
    for step, batch in enumerate(batches(settings)):
        where = stream.locate(step, ROWS, (PlanEntry(0, 0, len(ROWS)),))
        tokens = original(batch)
        expected = FIRST + (where.cursor_B[:, None] + np.arange(T - 2)) % TEXT.tokens
        np.testing.assert_array_equal(tokens[:, 1:-1], expected)
        assert (tokens[:, 0] == CLS).all() and (tokens[:, -1] == SEP).all()
        assert not batch.segments.any() and not batch.rank.any() and not batch.label_weight.any()
        assert (batch.target_weights.sum(axis=1) == 10).all()
        assert (batch.target_tokens[batch.target_weights > 0] >= FIRST).all()


def test_targets_are_a_share_of_the_text_with_its_special_pieces():
    seen = set()
    for batch in batches(config(short_rate=0.5, num_predict=8)):
        used = (batch.rank == 0).sum(axis=1)
        goal = np.clip(np.rint(0.15 * used), 1, 8)
        np.testing.assert_array_equal(batch.target_weights.sum(axis=1), np.minimum(goal, used - 3))
        seen |= set(goal)
    assert min(seen) <= 4 and max(seen) == 8


@pytest.mark.parametrize(("shares", "pieces"), [((0.8, 0.1), "text"), ((0.5, 0.35), "all")])
def test_targets_become_a_mask_a_random_piece_or_stay(shares, pieces):
    settings = config(mask_share=shares[0], random_share=shares[1], random_pieces=pieces)
    counts, drawn = np.zeros(3), []
    for batch in batches(settings, steps=range(30)):
        row, slot = np.nonzero(batch.target_weights)
        fed = batch.tokens[row, batch.target_positions[row, slot]]
        stays, is_mask = fed == batch.target_tokens[row, slot], fed == MASK
        other = ~is_mask & ~stays
        counts += [is_mask.sum(), other.sum(), stays.sum()]
        drawn.extend(fed[other])
    expected, total = np.array([*shares, 1 - sum(shares)]), counts.sum()
    sure = 4 * (expected * (1 - expected) / total) ** 0.5
    assert total > 10_000 and (abs(counts / total - expected) < sure).all()
    assert (9 if pieces == "text" else 0) <= min(drawn) < 200
    assert max(drawn) > FIRST + TEXT.tokens - 200


@pytest.mark.parametrize(
    ("words", "goal", "order", "lengths", "max_span", "ineligible", "expected"),
    [
        # Of words alone, whatever n is drawn, the last one before SEP, and those behind it.
        ("W.WW..WW.W", 3, [3, 4, 5], [3, 3, 3], 1, [6], [7, 8, 9]),
        ("WWWWWW", 2, [2, 0], [3] * 6, 3, [3], [0, 2]),  # before SEP in the middle of a row
        ("W.W.WW", 4, [1, 0], [3, 1, 1, 1], 3, [4], [0, 1, 2, 3]),
        ("WWWWWW", 3, [3, 0], [2] * 6, 3, [4, 5], [0, 1, 3]),  # before SEP and padding
        ("W.WW..WW.W", 100, [0], [1] * 10, 1, [], list(range(10))),  # all, of a larger goal
        (".....W", 3, [0], [1], 1, [], [5]),  # what belongs to no word is none
    ],
)
def test_spans_of_words_end_before_sep(words, goal, order, lengths, max_span, ineligible, expected):
    """Pieces without a word are no targets. A word is a `W` and the dots behind it. `order`: where
    the words tried first begin.
    """
    N, start = len(words), np.array([[letter == "W" for letter in words]])
    eligible = ~np.isin(np.arange(N), ineligible)[None]
    draws = np.full((1, 2 * N), 0.99)
    draws[0, order] = np.arange(len(order)) / 100
    draws[0, N : N + len(lengths)] = [{1: 0.5, 2: 0.6, 3: 0.9}[n] for n in lengths]
    found = spans.in_random_order(start, eligible, np.array([[goal]]), draws, max_span)
    assert np.flatnonzero(found[0]).tolist() == expected


def of_google(words, goal, order, lengths):
    """`create_masked_lm_predictions` of ALBERT's code with n and the order of the words given:
    pieces of the targets.

    `words`: lists of pieces. It first slices what follows a word, then tries shorter spans against
    the goal.
    """
    masked, covered = 0, set()
    for index, drawn in zip(order, lengths, strict=True):
        if masked >= goal:
            break
        following = [words[index : index + n] for n in range(1, 4)]
        for n in range(drawn, 0, -1):
            pieces = sum(following[n - 1], [])
            if masked + len(pieces) <= goal:
                break
        else:
            continue
        if not covered & set(pieces):
            covered |= set(pieces)
            masked += len(pieces)
    return sorted(covered)


def test_n_grams_are_those_of_google():
    """On texts without SEP in the middle: there Google's code lets a span go on with the words of
    B.
    """
    rng, ends = np.random.default_rng(1), 0
    for _ in range(300):
        N = int(rng.integers(3, 40))
        start, draws = rng.random((1, N)) < 0.7, rng.random((1, 2 * N))
        start[0, 0] = True
        first = np.flatnonzero(start)
        words = [list(range(a, b)) for a, b in zip(first, [*first[1:], N], strict=True)]
        lengths = [1 + int(u >= 6 / 11) + int(u >= 9 / 11) for u in draws[0, N:][: len(words)]]
        goal = int(rng.integers(1, N + 1))
        expected = of_google(words, goal, np.argsort(draws[0, : len(words)]), lengths)
        found = spans.in_random_order(start, np.ones((1, N), bool), np.array([[goal]]), draws, 3)
        assert np.flatnonzero(found[0]).tolist() == expected
        ends += N - 1 in expected
    assert ends > 100


@pytest.mark.parametrize("max_span", [1, 3])
def test_whole_words_and_n_grams_in_examples(max_span):
    """No word is cut."""
    for batch in batches(config(spans="words", max_span=max_span)):
        tokens = original(batch)
        target = np.zeros_like(tokens, bool)
        row, slot = np.nonzero(batch.target_weights)
        target[row, batch.target_positions[row, slot]] = True
        special = tokens < FIRST
        start = TEXT.tokenizer.word_start[tokens] | special | np.roll(special, 1, axis=1)
        inside = ~start[:, 1:]
        assert (target[:, 1:] == target[:, :-1])[inside].all(), "a word is partly a target"
        goal = np.rint(0.15 * (batch.rank == 0).sum(axis=1)).clip(1)
        assert (target.sum(axis=1) <= goal).all() and target.sum() > 0.9 * goal.sum()


def test_static_copies_are_ten():
    text = Documents(tokens=BUDGET * 2 * len(ROWS))

    def of_epoch(epoch, compat):
        settings = config("bert", compat, spans="words")
        plan = (PlanEntry(0, epoch * len(ROWS), len(ROWS)),)
        where = tiny.mixture(text).stream(settings).locate(1, ROWS, plan)
        batch = examples.build(
            examples.ExampleBuilder(text, text.tokenizer, settings, where, "train", epoch, ROWS)
        )
        order = np.argsort(where.block_B)
        return batch.tokens[order], batch.target_positions[order]

    for compat, same in (("static_copies", True), ("bert", True), ("", False)):
        first, next_, tenth = (of_epoch(epoch, compat) for epoch in (3, 4, 13))
        assert not np.array_equal(first[0], next_[0]) and not np.array_equal(first[1], next_[1])
        assert all(map(np.array_equal, first, tenth)) == same


@pytest.mark.parametrize(
    ("architecture", "data", "message"),
    [
        (
            "roberta",
            {"pairs": "next", "reuse_len": T - 3},
            "data.pairs=next must be none with model.architecture",
        ),
        ("roberta", {"reuse_len": T - 3}, "data.reuse_len=61 must be data.segment_len - 2 = 62"),
        (
            "bert",
            {"pairs": "none", "sentence_loss": True},
            "data.sentence_loss=True needs texts A and B",
        ),
        (
            "bert",
            {"pairs": "none", "short_rate": 0.1},
            "data.short_rate=0.1 is for whole sentences",
        ),
        ("bert", {"spans": "pieces"}, "data.spans=pieces is not for model.architecture=bert"),
        (
            "bert",
            {"random_share": 0.3},
            "data.random_share=0.3 and data.mask_share=0.8 are more than 1",
        ),
        (
            "bert",
            {"compat": "2019"},
            "must leave out piece_spans, fill_functional, static_targets, both_directions",
        ),
        ("bert", {"num_predict": 0}, "data.num_predict=0 must be at least 1"),
    ],
)
def test_settings_that_a_family_cannot_have_are_refused(architecture, data, message):
    with pytest.raises(BadInput) as error:
        config(architecture, **data)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("data", {"pairs": "none"}, "data.pairs=none is not for model.architecture=xlnet"),
        (
            "compat",
            {"switches": "static_copies"},
            "must leave out static_copies with model.architecture=xlnet, data.objective=plm",
        ),
    ],
)
def test_rules_of_others_name_the_families_too(section, changes, message):
    with pytest.raises(BadInput, match=message):
        configs.check(Config().changed(**{section: changes}))


def test_one_document_has_no_other_for_b():
    text = Documents()
    text.document_starts[1:] = False
    with pytest.raises(
        BadInput,
        match="the train split of memory is one document, but data.pairs=next needs another",
    ):
        examples.check_length(text, config(), tiny.mixture(text).split_names()[0])
    examples.check_length(text, config("albert", pairs="order"), "text")
