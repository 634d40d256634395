#!/usr/bin/env bash
# launch/gke.sh --name=xlnet --image=REGION-docker.pkg.dev/P/R/xlnet_jax:SHA --accelerator=tpu-v6e-slice --topology=2x4 \
#   --chips=8 --claim=xlnet-work [--spot] -- train --config=configs/xlnet_base.py --workdir=/mnt/xlnet/run ...
# launch/gke.sh --name=xlnet --delete
#
# Fills in launch/gke/jobset.yaml and hands it to kubectl. Exit code 42 restarts the JobSet; every other one but those of
# a killed pod ends it. Requires kubectl with a context whose cluster has the JobSet controller and a TPU node pool, an
# image of launch/Dockerfile, and a PersistentVolumeClaim for work directory and corpus.
#
#   --name --namespace          of the JobSet (namespace: default)
#   --image=IMAGE               what to run
#   --accelerator=LABEL --topology=AxB     labels of the node pool: tpu-v5-lite-podslice, tpu-v6e-slice, ...; 2x4, ...
#   --chips=N                   TPU chips of a host
#   --hosts=N --slices=N        hosts of a slice, and slices (default 1)
#   --claim=NAME --mount=DIR    the claim, and where it goes (default /mnt/xlnet)
#   --service-account=NAME      of Kubernetes (default: default)
#   --spot                      nodes of Spot pools only
#   --max-restarts=N            (default 50)
#   --grace=SECONDS             between SIGTERM and SIGKILL (default 600)
#   --several-hosts             do not refuse several hosts or slices
#   --print                     print the manifest and do nothing else
#   --dry-run                   print the command, and run none; the manifest goes to its standard input
#   --delete                    delete the JobSet; the claim stays

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

namespace=default image="" topology="" chips="" hosts=1 slices=1 claim="" account=default restarts=50 grace=600 only_print=""
(($# > 0)) || refuse "no options; see --help"
while (($# > 0)); do
  case $1 in
    --help) usage ;;
    --dry-run) DRY_RUN=1 ;;
    --print) only_print=1 ;;
    --name=*) name=${1#*=} ;;
    --namespace=*) namespace=${1#*=} ;;
    --image=*) image=${1#*=} ;;
    --accelerator=*) accelerator=${1#*=} ;;
    --topology=*) topology=${1#*=} ;;
    --chips=*) chips=${1#*=} ;;
    --hosts=*) hosts=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --claim=*) claim=${1#*=} ;;
    --mount=*) mount=${1#*=} ;;
    --service-account=*) account=${1#*=} ;;
    --spot) spot=1 ;;
    --max-restarts=*) restarts=${1#*=} ;;
    --grace=*) grace=${1#*=} ;;
    --several-hosts) several_hosts=1 ;;
    --delete) delete=1 ;;
    --) shift; train=("$@"); break ;;
    *) refuse "unknown option $1; see --help" ;;
  esac
  shift
done
need name "$name" "$NAME"
need namespace "$namespace" "$NAME"
if [[ -n $delete ]]; then
  run kubectl --namespace="$namespace" delete jobset "$name" --ignore-not-found
  exit
fi
need image "$image" "$WORD"
need accelerator "$accelerator" "$NAME"
need topology "$topology" "[0-9]+(x[0-9]+){1,2}"
need chips "$chips" "$NUMBER"
need hosts "$hosts" "$NUMBER"
need slices "$slices" "$NUMBER"
need claim "$claim" "$NAME"
need mount "$mount" "/$WORD"
need service-account "$account" "$NAME"
need max-restarts "$restarts" "[0-9]+"
need grace "$grace" "$NUMBER"
check_hosts "$hosts" "$slices" "$several_hosts"
check_train "${train[@]}"

# A JSON list, which is YAML as well.
args=""
for word in "${train[@]}"; do
  [[ $word != *[[:cntrl:]]* ]] || refuse "the command holds a control character"
  word=${word//\\/\\\\}
  args+=", \"${word//\"/\\\"}\""
done

manifest=$(<"$HERE/gke/jobset.yaml")
fill() {
  # Quoted, so that & and \ in the value stay what they are in any version of bash.
  manifest=${manifest//"@$1@"/"$2"}
}
fill NAME "$name"
fill IMAGE "$image"
fill ACCELERATOR "$accelerator"
fill TOPOLOGY "$topology"
fill CHIPS "$chips"
fill HOSTS "$hosts"
fill SLICES "$slices"
fill CLAIM "$claim"
fill MOUNT "$mount"
fill SERVICE_ACCOUNT "$account"
fill MAX_RESTARTS "$restarts"
fill GRACE "$grace"
fill SPOT "${spot:+cloud.google.com/gke-spot: \"true\"}"
fill ARGS "[${args:2}]"

if [[ -n $only_print ]]; then
  echo "$manifest"
  exit
fi
run kubectl --namespace="$namespace" apply --filename=- <<<"$manifest"
