"""XLNet-Large on a mixture of five corpora, like the data of the paper.

    xlnet-jax prepare --tfds=wikipedia/20230601.en --data_dir=TFDS --output=corpora/wikipedia
    for name in books giga5 clueweb common_crawl; do
      xlnet-jax prepare --input=TEXT/$name --tokenizer=corpora/wikipedia/spiece.model \
        --output=corpora/$name
    done
    xlnet-jax train --config=configs/xlnet_large_five_corpora.py --workdir=RUN

Published (section 3.1 of the paper, counts of SentencePiece pieces): Wikipedia 2.78 B, BooksCorpus
1.09 B, Giga5 4.75 B, ClueWeb 2012-B 4.30 B, Common Crawl 19.97 B, 32.89 B in total. The 2019 code
read the files of all five in one shuffled order, so each was read in proportion to its size.
Ours: the same proportions as fixed weights, so that they hold for any text that replaces a corpus.
BooksCorpus and Giga5 are not freely available; use another corpus instead, or remove the corpus and
its weight. Here a tokenizer is trained on the first corpus; to use the published one, give the
released model as `--tokenizer` to all five commands. Not yet run: no expected result. Everything
else is `configs/xlnet_large.py`.
"""

from xlnet_jax import config as base

PIECES = {"wikipedia": 2.78, "books": 1.09, "giga5": 4.75, "clueweb": 4.30, "common_crawl": 19.97}
"""Billions of pieces, by folder."""


def get_config():
    config = base.start_from(__file__, "xlnet_large.py")
    config.data.corpus = ",".join(f"corpora/{name}" for name in PIECES)
    config.data.weights = ",".join(map(str, PIECES.values()))
    return config
