"""The members of the family, one module for each value of `model.architecture`: data alone, without jax.

                         xlnet                bert      roberta     albert      gpt2      transformer
    objectives           plm clm mlm mdm      mlm mdm   mlm mdm     mlm mdm     clm       clm
    an example           A SEP B SEP CLS      CLS A SEP B SEP; roberta SEP SEP  A B       A B
    padding              left                 right     right       right       right     right
    positions            relative             input     input       input       input     sinusoids
    segments             relative; clm none   input     input       input       none      none
    streams              2; clm 1             1         1           1           1         1
    targets              plm query, content   content   content     content     content   content
    embedding_norm       no                   yes       yes         narrow      no        no
    biases               no                   yes       yes         yes         yes       yes
    final_norm           no                   no        no          no          yes       no
    head                 bias                 dense     dense, erf  dense       bare      bare

A module takes what it needs to know of a member, never its name. docs/add_a_member.md shows a new one.
"""

from xlnet_jax.members.albert import ALBERT
from xlnet_jax.members.bert import BERT
from xlnet_jax.members.gpt2 import GPT2
from xlnet_jax.members.roberta import ROBERTA
from xlnet_jax.members.transformer import TRANSFORMER
from xlnet_jax.members.xlnet import XLNET

MEMBERS = {member.name: member for member in (XLNET, BERT, ROBERTA, ALBERT, GPT2, TRANSFORMER)}
"""By `model.architecture`."""
