"""Lines of text that tokenizers trip over: written ones, and drawn ones."""

from __future__ import annotations

import unicodedata

import numpy as np

LINES = [
    "",
    " ",
    "\t",
    "Ångström's naïve café résumé, “quoted” and ``quoted'' … ½ of the ﬁne œuvre",
    "I'll don't he's WE'VE they'd 'tis ''twas'' o'clock's",
    "  two  spaces   before\u00a0and\u2003after ",
    "日本語のテキストです。漢字と㐀と𠀀 한국어 텍스트",
    "नमस्ते दुनिया ภาษาไทย مُحَمَّد שָׁלוֹם",
    "a\u200bb\u200dc\ufeffd\u00ade\x01f\x7fg\ufffdh\u2028i\u2029j\x85k\x1cl",
    "x" * 300 + " " + "y" * 100 + " " + "é" * 101,
    "👍🏽 👨‍👩‍👧 🇩🇪 ☺️ \U0001f9ff",
    "$1,234.56 (50%) a+b=c <tag> [x] {y} ^_^ `~ |\\/ #1 @me",
    "İstanbul ÇİĞ straße ẞ Ǆ",
    "e\u0301\u0301\u0316 n\u0303 \u0301alone",
    "3.14 １２３ ٣ ² ⅷ ①",
    "don’t — “dash” – ‘quote’ ¿qué? ¡sí! «a»",
    "。、「」",
    "_under_score_ __init__",
    "http://a.b/c?d=e&f=g#h user@host.org C:\\path\\to",
]

_RANGES = [
    (0x20, 0x7F), (0x20, 0x7F), (0x41, 0x5B), (0x61, 0x7B), (0x61, 0x7B), (0xA0, 0x180),
    (0x300, 0x370), (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x900, 0x980),
    (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xFF00, 0xFF60),
    (0x1F600, 0x1F650), (0x1, 0x20),
]  # fmt: skip


def drawn(count: int, seed: int) -> list[str]:
    """Lines of many scripts, with accents, control characters and emoji, and words of up to 300
    letters.
    """
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        words = []
        for _ in range(random.integers(1, 12)):
            first, end = _RANGES[random.integers(len(_RANGES))]
            length = random.integers(1, 300) if random.random() < 0.03 else random.integers(1, 9)
            # What is no character yet is one for newer programs.
            letters = map(chr, random.integers(first, end, length))
            words.append("".join(each for each in letters if unicodedata.category(each) != "Cn"))
        lines.append((" " if random.random() < 0.8 else "").join(words).replace("\n", " "))
    return lines
