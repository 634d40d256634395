#!/usr/bin/env bash
# Everything that only a card can show, on one NVIDIA GPU of 80 GB or more, in at most 21 minutes: correctness first,
# then speed. Needs the extras gpu and peers, and a corpus of `xlnet-jax quickstart`.
#
#     benchmarks/gpu.sh OUT CORPUS
#
# The output of each part is OUT/PART.log. Each has its own limit in seconds, so that the next one always runs.
set -uo pipefail
out=$1 corpus=$2
here=$(dirname "$0")
common=(--device=gpu --rounds=5 --json --config.model.remat=none)
large=("${common[@]}" --config="$here/../configs/xlnet_large_512.py" --corpus="$corpus")
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=.95
mkdir -p "$out"

part() {
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  echo "== $name: exit code $code after $((SECONDS - began)) s: $*"
  tail -n 3 "$out/$name.log"
  return $code
}

nvidia-smi >"$out/card.log" 2>&1
part check 110 "$python" "$here/_gpu.py" check
part attention 110 "$python" "$here/attention.py" --device=gpu --cudnn --json
# Both sides fit a card of 141 GB with 16 rows, one of 80 GB with 8.
for rows in 16 8; do
  part "step_$rows" 130 "$python" "$here/step.py" "${large[@]}" --config.train.batch_size=$rows \
    --figures ours ours_with_loader peer && break
done
part step_xla 110 "$python" "$here/step.py" "${large[@]}" --config.train.batch_size="$rows" \
  --figures ours_xla peer
part step_32 90 "$python" "$here/step.py" "${large[@]}" --config.train.batch_size=32 --figures ours
part step_modern_large_mlm 180 "$python" "$here/step.py" "${common[@]}" --config="$here/../configs/modern/large_mlm.py" \
  --config.train.batch_size="$rows" --figures ours ours_xla peer peer_compiled
for name in modern/large_plm bert/large; do
  part "step_${name//\//_}" 110 "$python" "$here/step.py" "${common[@]}" --config="$here/../configs/$name.py" \
    --config.train.batch_size="$rows" --figures ours ours_xla
done
part doctor 60 "$python" -m xlnet_jax doctor
part resume 120 "$python" "$here/_gpu.py" resume "$corpus" "$(mktemp -d)" &
XLA_FLAGS=--xla_gpu_deterministic_ops=true \
  part resume_deterministic 120 "$python" "$here/_gpu.py" resume "$corpus" "$(mktemp -d)" &
wait
