#!/usr/bin/env bash
# launch/queued_resource.sh --name=xlnet --zone=us-east5-b --accelerator=v6e-8 --repo=https://... --commit=SHA --spot \
#   [--recreate] [--valid-until=6h] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/queued_resource.sh --name=xlnet --zone=us-east5-b --delete
#
# Requests TPUs in the queue, waits until the request is ACTIVE, installs the commit on the hosts with launch/startup.sh,
# and trains there. Ends when the training ends, with its exit code; after 42 (interrupted and saved) it reruns the same
# command. The request exists, and costs money, until --delete. Requires gcloud with the rights of roles/tpu.admin.
#
#   --name --zone --project     of the request; its machine has the same name
#   --accelerator=TYPE          such as v4-8, v5litepod-16, v5p-128, v6e-256
#   --slices=N                  several slices over the data-centre network, named NAME-0, NAME-1, ...; libtpu and JAX
#                               find their place among them in the metadata of such a request (MEGASCALE_*)
#   --runtime=VERSION           software of the TPU VM (default: the one for the type)
#   --spot --reserved           capacity that may be preempted, or that is reserved
#   --valid-until=DURATION      stop waiting after this time, such as 6h
#   --repo=URL --commit=SHA     the code: a repository that `git clone` reads on the hosts without a prompt
#   --shared-workdir            for several hosts: the folder of --workdir is mounted on all of them
#   --flags=CHIP[,CHIP...]      LIBTPU_INIT_ARGS of launch/flags/CHIP.txt (default: none)
#   --disk=SOURCE               for one host: a disk to attach; startup.sh mounts it, work directory and corpus can be there
#   --device=PATH --mount=DIR   the disk's device there (default /dev/sdb), and its mount point (default /mnt/xlnet)
#   --internal-ips --network=N --subnetwork=N --service-account=MAIL     as gcloud has them
#   --recreate                  a suspended request (its machines are gone) is deleted and created again, without a limit
#   --boot                      the machines start training at every boot (log: journalctl -u xlnet-jax); do not wait
#   --poll=SECONDS              between two checks (default 30)
#   --dry-run                   print the commands, one per line, and do not run them
#   --delete                    delete the request and its machines; attached disks stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

slices=1 valid_until=""
other_option() {
  case $1 in
    --slices=*) slices=${1#*=} ;;
    --valid-until=*) valid_until=${1#*=} ;;
    *) return 1 ;;
  esac
}

remove() {
  run gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet
}

parse_tpu_options "$@"
if [[ -n $delete ]]; then
  remove
  exit
fi
need slices "$slices" "$NUMBER"
[[ $slices == 1 || $accelerator != v[23]-* ]] || refuse "--slices=$slices: $accelerator cannot be joined, v4 and later can"
check_tpu_options "$slices"
# Otherwise gcloud starts with 64 hosts, and starts the next ones when these have ended.
all_hosts=(--node=all --worker=all --batch-size=all)

create() {
  local nodes=(--node-id="$name")
  ((slices == 1)) || nodes=(--node-count="$slices" --node-prefix="$name")
  run gcloud compute tpus queued-resources create "$name" "${place[@]}" "${nodes[@]}" \
    --accelerator-type="$accelerator" --runtime-version="$runtime" \
    ${valid_until:+--valid-until-duration="$valid_until"} "${creation[@]}" --quiet
}

# Ensures that the request exists and is ACTIVE. The states are those of QueuedResourceState in the API v2.
active() {
  local state before=""
  while true; do
    state=$(state_of state.state queued-resources)
    [[ $state == "$before" ]] || note "$name is $state"
    before=$state
    case $state in
      ACTIVE) return ;;
      absent) create ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) sleep "$poll" ;;
      SUSPENDING | DELETING)
        [[ -n $recreate ]] || fail "$name is $state; --recreate waits and creates it again"
        sleep "$poll"
        ;;
      SUSPENDED)
        [[ -n $recreate ]] || fail "$name is SUSPENDED: its machines are gone; --recreate creates it again"
        remove
        ;;
      FAILED) fail "$name FAILED; see the reason with: gcloud compute tpus queued-resources describe $(quoted "$name" "${place[@]}")" ;;
      *) fail "$name is in the unknown state '$state'" ;;
    esac
  done
}

if [[ -n $DRY_RUN ]]; then
  create
  run gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format="value(state.state)"
  [[ -n $boot ]] || train_on_hosts queued-resources
  exit
fi

train_until_the_end queued-resources state.state ACTIVE active
