"""The ids of XLNet's special pieces by name."""

from xlnet_jax.data.tokenizer import XLNET

UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = XLNET
