"""A small ModernBERT, on a laptop's CPU.

    xlnet-jax quickstart --config=configs/modern/small_mlm.py --workdir=runs/modern

Hardware: two CPU cores, no accelerator. Nothing here is published: the sizes of small_plm.py.
"""

from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "small_plm.py")
    config.model.update(architecture="modernbert", max_positions=512, memory_len=0)
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
