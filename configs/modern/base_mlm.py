"""ModernBERT-Base: 22 layers, width 768, 149,656,000 parameters.

    xlnet-jax train --config=configs/modern/base_mlm.py --config.data.corpus=CORPUS --workdir=RUN

The corpus needs a vocabulary of 50,368 pieces: `prepare --family=modernbert --vocab_size=50368`.
Published (Warner et al. 2024, arXiv 2412.13663, the released checkpoint's configuration, and
modernbert-base-pretrain.yaml of its repository): all keys of model, 30 % of the tokens as targets,
beta 2 and epsilon of Adam. Theirs had 1,024 tokens and theta 10,000, then 8,192 and 160,000, a
batch of 4,608, a rate of 8e-4 and StableAdamW. Ours: every training setting here. The keys of
examples follow data.segment_len. No complete run yet: no expected result.
"""

from xlnet_jax import config as base


def get_config(sizes="base_plm.py"):
    config = base.start_from(__file__, sizes)
    config.model.update(architecture="modernbert", max_positions=8192, memory_len=0)
    config.data.update(
        objective="mlm",
        bidirectional=False,
        windows_per_block=1,
        pairs="none",
        spans="random",
        target_rate=0.3,
    )
    config.data.reuse_len = config.data.get_ref("segment_len") - 2
    config.data.num_predict = config.data.get_ref("segment_len") * 3 // 10
    return config
