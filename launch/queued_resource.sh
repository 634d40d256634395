#!/usr/bin/env bash
# launch/queued_resource.sh --name=xlnet --zone=us-east5-b --accelerator=v6e-8 --repo=https://... --commit=SHA \
#   [--capacity=spot --recreate] [--autodelete] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/queued_resource.sh --name=xlnet --zone=us-east5-b --delete
#
# Requests TPUs in the queue, waits until the request is ACTIVE, installs the commit on the hosts with launch/startup.sh,
# and trains there. Ends when the training ends, with its exit code; after 42 (interrupted and saved) it reruns the same
# command. Failures that may pass (UNAVAILABLE, no connection, a request that FAILED for want of capacity) are retried
# with growing pauses; wrong requests and missing rights end this script. The request exists, and costs money, until
# --delete or --autodelete. Requires gcloud with the rights of roles/tpu.admin.
#
#   --name --zone --project     of the request; its machine has the same name
#   --accelerator=TYPE          such as v4-8, v5litepod-16, v5p-128, v6e-256
#   --runtime=VERSION           software of the TPU VM (default: the one for the type)
#   --slices=N                  several slices over the data-centre network, named NAME-0, NAME-1, ...; libtpu and JAX
#                               read the number of their slice from the metadata of the request (MEGASCALE_*)
#   --capacity=KIND             on-demand (default); spot, which may be preempted; flex-start, which ends after
#                               --max-run-duration; reservation=NAME; calendar=NAME, a reservation in calendar mode
#   --max-run-duration=TIME     of flex-start, 7d at most (default 7d)
#   --valid-until=DURATION      the request FAILS if it still waits after this time, such as 6h
#   --repo=URL|DIR --commit=SHA the code: a repository that `git clone` reads on the hosts without a prompt, or a local
#                               checkout, whose commit is copied to the hosts as a git bundle
#   --staging=gs://BUCKET/DIR   with --boot and --repo=DIR: where the hosts read the bundle
#   --env=NAME[,NAME...]        set these variables of your environment on the hosts too, such as a token; scp copies them
#                               in a file for the owner alone, so they are not in commands or metadata
#   --shared-workdir            for several hosts: confirms that the folder of --workdir is mounted on all hosts
#   --logs=gs://BUCKET/DIR      copy the log of every host to this folder, as NAME/HOST/, from the first command to the end
#   --disk=SOURCE               for one host: a disk for work directory and corpus; startup.sh mounts it
#   --device=PATH --mount=DIR   the disk's device on the host (default /dev/sdb), and its mount point (default /mnt/xlnet)
#   --internal-ips --network=N --subnetwork=N --service-account=MAIL     as gcloud has them
#   --tunnel-through-iap        reach hosts without external addresses through Identity-Aware Proxy
#   --recreate                  delete and create again, without a limit, a request that is suspended (its machines are
#                               gone), that FAILED, or whose machines are unreachable five times in a row
#   --give-up-after=TIME        end after this time of failures in a row: 90m, 6h, 2d, never (default: never with
#                               --recreate, otherwise 30m)
#   --autodelete[=any]          delete it when the training is done (exit code 0); with =any also after any other final
#                               exit code and after giving up. Ctrl-C here never deletes
#   --boot                      the machine starts training at every boot (log: journalctl -u xlnet-jax); do not wait
#   --price-per-chip-hour=N     price of a chip hour, to print the cost at the end
#   --poll=SECONDS              between two checks, and the first pause before a retry (default 30)
#   --dry-run                   print the commands, one per line, and do not run them
#   --delete                    delete the request and its machines; attached disks stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

slices=1 valid_until="" max_run=7d tool=(gcloud)
other_option() {
  case $1 in
    --slices=*) slices=${1#*=} ;;
    --valid-until=*) valid_until=${1#*=} ;;
    --max-run-duration=*) max_run=${1#*=} ;;
    *) return 1 ;;
  esac
}

group=queued-resources ready_state=ACTIVE force=(--force)
parse_tpu_options "$@"
if [[ -n $delete ]]; then
  remove
  exit
fi
need slices "$slices" "$NUMBER"
need max-run-duration "$max_run" "${NUMBER}[smhd]"
check_tpu_options "$slices" "on-demand spot flex-start reservation calendar"
# These are options of the alpha command only.
case $capacity in
  flex-start) creation+=(--provisioning-model=flex-start --max-run-duration="$max_run") ;;
  reservation=*) creation+=(--reservation="${capacity#*=}") ;;
  calendar=*) creation+=(--reservation="${capacity#*=}" --provisioning-model=reservation-bound) ;;
esac
[[ $capacity == @(on-demand|spot) ]] || tool=(gcloud alpha)
# Without --batch-size=all gcloud starts 64 hosts, and the next hosts only when these have ended.
all_hosts=(--node=all --worker=all --batch-size=all)

create() {
  local nodes=(--node-id="$name")
  ((slices == 1)) || nodes=(--node-count="$slices" --node-prefix="$name")
  attempt "${tool[@]}" compute tpus queued-resources create "$name" "${place[@]}" "${nodes[@]}" \
    --accelerator-type="$accelerator" --runtime-version="$runtime" \
    ${valid_until:+--valid-until-duration="$valid_until"} "${creation[@]}" --quiet
}

look() {
  state_of state.state
}

# Ensures that the request exists and is ACTIVE. The states are the values of QueuedResourceState in the API v2.
ready() {
  local before=""
  while true; do
    look
    [[ $state == "$before" || $state == absent ]] || note "$name is $state"
    before=$state
    case $state in
      ACTIVE) return ;;
      absent) enter waiting && { create || back_off "$answer"; } ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) enter waiting && wait_for sleep "$poll" ;;
      SUSPENDING | DELETING)
        [[ -n $recreate || $capacity == flex-start ]] || finish 1 "$name is $state; --recreate waits and creates it again"
        wait_for sleep "$poll"
        ;;
      SUSPENDED)
        [[ $capacity != flex-start ]] || time_is_over
        [[ -n $recreate ]] || finish 1 "$name is SUSPENDED: its machines are gone; --recreate creates it again"
        remove
        ;;
      FAILED) failed ;;
      *) fail "$name is in the unknown state '$state'" ;;
    esac
  done
}

# A request that found no capacity in time is also FAILED; --recreate retries it. A wrong request, a missing right or a
# quota of zero (3, 7 and 16 of google.rpc.Code) would fail again.
failed() {
  state_of "state.failedData.error.code,state.failedData.error.message"
  if [[ -z $recreate || $state =~ ^(3|7|16)[[:space:]] || $state =~ $PERMANENT ]]; then
    finish 1 "$name FAILED: $state"
  fi
  remove
  back_off "$name FAILED: $state"
}

if [[ -n $DRY_RUN ]]; then
  create
  quoted gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format="value(state.state)"
  show_training
  exit
fi

train_until_the_end
