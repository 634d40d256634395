"""The members of the family, one module for each value of `model.architecture`: data alone, without
jax.

                      xlnet               transformer_xl   vanilla
    objectives        plm clm mlm mdm     clm              clm
    an example        A SEP B SEP CLS, padded on the left
    positions         relative            relative         per_layer
    segments          relative; clm none  none             none
    streams           2; clm 1            1                1
    targets           plm query; content  content          content
    head              bias                bias             bias

                      bert       roberta      albert      gpt2     transformer
    objectives        mlm mdm    mlm mdm      mlm mdm     clm      clm
    an example        CLS A SEP B SEP         (as bert)   A B      A B
                                 SEP SEP                           all padded on the right
    positions         input      input        input       input    sinusoids
    segments          input      input        input       none     none
    embedding_norm    yes        yes          narrow      no       no
    final_norm        no         no           no          yes      no
    head              dense      dense, erf   dense       bare     bare

                      modernbert             modern
    objectives        mlm mdm                plm clm mlm mdm
    an example        CLS A SEP B SEP        (as xlnet)
    positions         rotary, windows        rotary, windows
    segments          none                   none
    streams           1                      2; clm 1
    targets           content                plm query; content
    feed-forward      gated                  gated
    norms             embedding, final; not before the first attention
    head              dense                  dense

The members of the second table have one stream, which predicts the targets, and biases in
attention; members of the third table have biases only in the softmax. A module reads the fields of
a member, never its name. CONTRIBUTING.md shows how to add a member.
"""

from xlnet_jax.members.albert import ALBERT
from xlnet_jax.members.bert import BERT
from xlnet_jax.members.gpt2 import GPT2
from xlnet_jax.members.modern import MODERN
from xlnet_jax.members.modernbert import MODERNBERT
from xlnet_jax.members.roberta import ROBERTA
from xlnet_jax.members.transformer import TRANSFORMER
from xlnet_jax.members.transformer_xl import TRANSFORMER_XL
from xlnet_jax.members.vanilla import VANILLA
from xlnet_jax.members.xlnet import XLNET

MEMBERS = {
    member.name: member
    for member in (
        XLNET,
        TRANSFORMER_XL,
        VANILLA,
        BERT,
        ROBERTA,
        ALBERT,
        GPT2,
        TRANSFORMER,
        MODERNBERT,
        MODERN,
    )
}
"""Members by `model.architecture`."""
