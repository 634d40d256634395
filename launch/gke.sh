#!/usr/bin/env bash
# launch/gke.sh --name=xlnet --image=REGION-docker.pkg.dev/P/R/xlnet_jax:SHA --accelerator=tpu-v6e-slice --topology=4x4 \
#   --chips=4 [--slices=2] [--capacity=spot] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/gke.sh --name=xlnet --delete
#
# Fills in launch/gke/jobset.yaml and passes it to kubectl. A pod runs `xlnet-jax doctor` and then the trainer. Exit code 42
# and the exit codes of a killed pod restart the JobSet, with all hosts of all slices; any other exit code ends it. Requires
# kubectl with a context whose cluster has the JobSet controller and a TPU node pool for every slice, an image of
# launch/Dockerfile, and for the work directory a bucket or a PersistentVolumeClaim.
#
#   --name --namespace          of the JobSet (namespace: default)
#   --image=IMAGE               the image to run
#   --accelerator=LABEL --topology=AxB     labels of the node pool: tpu-v5-lite-podslice, tpu-v6e-slice, ...; 2x4, ...
#   --chips=N                   TPU chips per host; with the topology, this gives the number of hosts per slice
#   --slices=N                  number of slices, over the data-centre network (default 1)
#   --network=host              pods use the network of their node, and the service account of the node pool (default)
#   --network=pod --service-account=NAME    pods have their own network, and the rights of this Kubernetes service account
#                               (Workload Identity Federation, which pods on the host network do not use)
#   --claim=NAME --mount=DIR    a PersistentVolumeClaim (default: none), and its mount point (default /mnt/xlnet)
#   --shared-workdir            for several hosts: confirms that all hosts can write to the claim (ReadWriteMany)
#   --capacity=KIND             of the node pool: on-demand (default), spot, flex-start, reservation=NAME
#   --queue=NAME                a LocalQueue of Kueue in which the JobSet waits, such as the queue of launch/gke/queue.yaml
#   --max-restarts=N            (default 50)
#   --grace=SECONDS             between SIGTERM and SIGKILL, for the pod and the trainer (default 600; Spot 15, at most 105)
#   --print                     print the manifest and do nothing else
#   --dry-run                   print the command and do not run it; the manifest goes to its standard input
#   --delete                    delete the JobSet; bucket and claim stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

namespace=default image="" topology="" chips="" slices=1 claim="" network=host account="" restarts=50 grace="" nodes="" queue="" only_print=""
(($# > 0)) || refuse "no options; see --help"
while (($# > 0)); do
  common_option "$1" || case $1 in
    --print) only_print=1 ;;
    --namespace=*) namespace=${1#*=} ;;
    --image=*) image=${1#*=} ;;
    --accelerator=*) accelerator=${1#*=} ;;
    --topology=*) topology=${1#*=} ;;
    --chips=*) chips=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --claim=*) claim=${1#*=} ;;
    --mount=*) mount=${1#*=} ;;
    --network=*) network=${1#*=} ;;
    --service-account=*) account=${1#*=} ;;
    --queue=*) queue=${1#*=} ;;
    --max-restarts=*) restarts=${1#*=} ;;
    --grace=*) grace=${1#*=} ;;
    --) shift; train=("$@"); break ;;
    *) refuse "unknown option $1; see --help" ;;
  esac
  shift
done
need name "$name" "$NAME"
need namespace "$namespace" "$NAME"
say_what_the_cluster_does
if [[ -n $delete ]]; then
  run kubectl --namespace="$namespace" delete jobset "$name" --ignore-not-found
  exit
fi
need image "$image" "$WORD"
need accelerator "$accelerator" "$NAME"
need topology "$topology" "$SHAPE"
need chips "$chips" "$NUMBER"
need slices "$slices" "$NUMBER"
[[ -z $claim ]] || need claim "$claim" "$NAME"
need mount "$mount" "/$WORD"
need network "$network" "host|pod"
if [[ $network == pod ]]; then
  need service-account "$account" "$NAME"
  dns=ClusterFirst host_network=""
else
  [[ -z $account ]] || refuse "--service-account=$account has no effect on the host network, where pods have the rights of" \
    "the node pool's account: add --network=pod, or leave it out"
  dns=ClusterFirstWithHostNet host_network=true
fi
[[ -z $queue ]] || need queue "$queue" "$NAME"
need max-restarts "$restarts" "[0-9]+"
single=""
read -r _ _ _ _ _ single largest joined _ shapes < <(rows_of 4 "$accelerator") || true
[[ -n $single ]] || refuse "--accelerator=$accelerator: no node label of GKE; use" \
  "$(awk '!/^#/ && $4 != "-" { print $4 }' "$HERE/../xlnet_jax/aot/slices.txt" | paste -sd' ')"
# shellcheck disable=SC2086 # the shapes are words
rented "$topology" "$largest" $shapes || refuse "--topology=$topology: $accelerator has no such slice; it has" \
  "${shapes/cubes/and multiples of 4 in ascending order}, up to $largest chips"
all_chips=$((${topology//x/*}))
((all_chips % chips == 0 && (chips == 4 || chips == all_chips && chips <= single))) ||
  refuse "--topology=$topology has $all_chips chips, which do not fit hosts of --chips=$chips; several hosts have 4 chips each"
[[ $slices == 1 || $joined == yes ]] || refuse "--slices=$slices: $accelerator cannot be joined, v4 and later can"
per_slice=$((all_chips / chips))
((slices == 1 || per_slice > 1)) || refuse "--slices=$slices: GKE joins slices of several hosts only, and $topology is one host"
hosts=$((per_slice * slices))
check_capacity 4 "$accelerator" "on-demand spot flex-start reservation"
case $capacity in
  spot) nodes='cloud.google.com/gke-spot: "true"' ;;
  flex-start) nodes='cloud.google.com/gke-flex-start: "true"' ;;
  reservation=*) nodes="cloud.google.com/reservation-name: ${capacity#*=}" ;;
esac
check_train "${train[@]}"
[[ -n $claim || " ${train[*]}" == *" --workdir=gs://"* ]] || refuse "a work directory that is not a bucket needs --claim=NAME"
check_grace

# A JSON list, which is also valid YAML.
list() {
  local word list=""
  for word; do
    [[ $word != *[[:cntrl:]]* ]] || refuse "the command contains a control character"
    word=${word//\\/\\\\}
    list+=", \"${word//\"/\\\"}\""
  done
  echo "[${list:2}]"
}

command=$(list bash -c "$(doctor_first)"' "$@"' xlnet-jax)
args=$(list "${train[@]}")
manifest=$(<"$HERE/gke/jobset.yaml")
fill() {
  if [[ -z $2 ]]; then
    manifest=$(sed "/@$1@/d" <<<"$manifest")
    return
  fi
  # Quoted, so that any version of bash keeps & and \ in the value unchanged.
  manifest=${manifest//"@$1@"/"$2"}
}
fill NAME "$name"
fill NAMESPACE "$namespace"
fill QUEUE "${queue:+labels: {kueue.x-k8s.io/queue-name: $queue\}}"
fill IMAGE "$image"
fill ACCELERATOR "$accelerator"
fill TOPOLOGY "$topology"
fill CHIPS "$chips"
fill HOSTS "$per_slice"
fill SLICES "$slices"
fill WORK_MOUNT "${claim:+- {name: work, mountPath: $mount\}}"
fill WORK_VOLUME "${claim:+- {name: work, persistentVolumeClaim: {claimName: $claim\}\}}"
fill HOST_NETWORK "$host_network"
fill DNS_POLICY "$dns"
fill SERVICE_ACCOUNT "$account"
fill METADATA_SERVER "${account:+iam.gke.io/gke-metadata-server-enabled: \"true\"}"
fill MAX_RESTARTS "$restarts"
fill GRACE "$grace"
fill CAPACITY "$nodes"
fill COMMAND "$command"
fill ARGS "$args"

if [[ -n $only_print ]]; then
  echo "$manifest"
  exit
fi
run kubectl --namespace="$namespace" apply --filename=- <<<"$manifest"
