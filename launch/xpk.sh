#!/usr/bin/env bash
# launch/xpk.sh --cluster=C --name=xlnet --tpu-type=v6e-16 --image=REGION-docker.pkg.dev/P/R/xlnet_jax:SHA \
#   [--slices=2] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/xpk.sh --cluster=C --name=xlnet --delete
#
# Runs the image of launch/Dockerfile as a workload of xpk, on every host of every slice: `xlnet-jax doctor`, then the
# trainer. Exit code 42 restarts all hosts, up to --max-restarts times; xpk itself also restarts after 127 to 255. The pods
# use the host network, so they have the rights of the node pool's service account. Requires xpk (written for 1.16), and a
# cluster from `xpk cluster create`.
#
#   --cluster --project --zone  of the cluster
#   --name=NAME                 of the workload
#   --tpu-type=TYPE --slices=N  such as v6e-16, v5p-128, tpu7x-64; slices over the data-centre network (default 1)
#   --image=IMAGE               the image to run
#   --storage=NAME              a storage of the cluster (`xpk storage`), for work directory and corpus; repeatable
#   --priority=P                very-low to very-high (default medium)
#   --capacity=KIND             of the node pool: on-demand (default), spot, flex-start, reservation=NAME
#   --max-restarts=N            (default 50)
#   --grace=SECONDS             between SIGTERM and SIGKILL, for the pod and the trainer (default 600; Spot 15, at most 105)
#   --shared-workdir            for several hosts: confirms that all hosts can write to the storage
#   --dry-run                   print the command and do not run it
#   --delete                    delete the workload; the storage stays

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cluster="" image="" slices=1 priority=medium restarts=50 grace="" places=() storage=() kind=()
(($# > 0)) || refuse "no options; see --help"
while (($# > 0)); do
  common_option "$1" || case $1 in
    --cluster=*) cluster=${1#*=} ;;
    --project=* | --zone=*) places+=("$1") ;;
    --tpu-type=*) accelerator=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --image=*) image=${1#*=} ;;
    --storage=*) storage+=("$1") ;;
    --priority=*) priority=${1#*=} ;;
    --max-restarts=*) restarts=${1#*=} ;;
    --grace=*) grace=${1#*=} ;;
    --) shift; train=("$@"); break ;;
    *) refuse "unknown option $1; see --help" ;;
  esac
  shift
done
need cluster "$cluster" "$NAME"
need name "$name" "$NAME"
say_what_the_cluster_does
if [[ -n $delete ]]; then
  run xpk workload delete --cluster="$cluster" --workload="$name" "${places[@]}"
  exit
fi
need tpu-type "$accelerator" "$NAME(-$NUMBER)?"
need slices "$slices" "$NUMBER"
need image "$image" "$WORD"
need priority "$priority" "very-low|low|medium|high|very-high"
need max-restarts "$restarts" "[0-9]+"
hosts=$(hosts_of tpu-type 3 "$accelerator" "$slices")
# xpk's node pools have four chips per host, so eight chips are two hosts, even where Cloud TPU has hosts with eight chips.
[[ $accelerator != @(v5litepod|v6e)-@(8|2x4) ]] || hosts=$((2 * slices))
check_capacity 3 "${accelerator%-*}" "on-demand spot flex-start reservation"
case $capacity in
  on-demand) ;; # the default
  flex-start) kind=(--flex) ;;
  *) kind=("--$capacity") ;;
esac
check_train "${train[@]}"
check_grace

# xpk runs the command in a shell and sends SIGTERM to that shell, which becomes the trainer after the check.
run xpk workload create --cluster="$cluster" --workload="$name" "${places[@]}" --tpu-type="$accelerator" \
  --num-slices="$slices" --docker-image="$image" --priority="$priority" --max-restarts="$restarts" \
  --restart-on-exit-codes=42 --termination-grace-period-seconds="$grace" "${storage[@]}" "${kind[@]}" \
  --env=XLNET_JOB_ID="$cluster/$name" \
  --command="$(doctor_first) $(quoted "${train[@]}")"
