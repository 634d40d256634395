#!/usr/bin/env bash
# launch/tpu_vm.sh --name=xlnet --zone=us-east5-b --accelerator=v6e-8 --repo=https://... --commit=$(git rev-parse HEAD) \
#   [--capacity=spot --recreate] [--autodelete] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/tpu_vm.sh --name=xlnet --zone=us-east5-b --delete
#
# Creates a Cloud TPU VM, or uses the existing one with that name; installs the commit on its hosts with
# launch/startup.sh, and trains there. Ends when the training ends, with its exit code; after 42 (interrupted and saved)
# it reruns the same command on all hosts. Failures that may pass (no capacity, UNAVAILABLE, no connection) are retried
# with growing pauses; wrong requests and missing rights end this script. The machine exists, and costs money, until
# --delete or --autodelete. Requires gcloud with the rights of roles/tpu.admin.
#
#   --name --zone --project     of the machine
#   --accelerator=TYPE          such as v4-8, v5litepod-16, v5p-128, v6e-256
#   --runtime=VERSION           software of the TPU VM (default: the one for the type)
#   --repo=URL|DIR --commit=SHA the code: a repository that `git clone` reads on the hosts without a prompt, or a local
#                               checkout, whose commit is copied to the hosts as a git bundle
#   --staging=gs://BUCKET/DIR   with --boot and --repo=DIR: where the hosts read the bundle
#   --env=NAME[,NAME...]        set these variables of your environment on the hosts too, such as a token; scp copies them
#                               in a file for the owner alone, so they are not in commands or metadata
#   --shared-workdir            for several hosts: confirms that the folder of --workdir is mounted on all hosts
#   --logs=gs://BUCKET/DIR      copy the log of every host to this folder, as NAME/HOST/, from the first command to the end
#   --disk=SOURCE               for one host: a disk for work directory and corpus; startup.sh mounts it
#   --device=PATH --mount=DIR   the disk's device on the host (default /dev/sdb), and its mount point (default /mnt/xlnet)
#   --capacity=KIND             on-demand (default), or spot, which may be preempted
#   --internal-ips --network=N --subnetwork=N --service-account=MAIL     as gcloud has them
#   --tunnel-through-iap        reach hosts without external addresses through Identity-Aware Proxy
#   --recreate                  delete and create again, without a limit, a machine that is preempted, or that is ready but
#                               unreachable five times in a row
#   --give-up-after=TIME        end after this time of failures in a row: 90m, 6h, 2d, never (default: never with
#                               --recreate, otherwise 30m)
#   --autodelete[=any]          delete it when the training is done (exit code 0); with =any also after any other final
#                               exit code and after giving up. Ctrl-C here never deletes
#   --boot                      the machine starts training at every boot (log: journalctl -u xlnet-jax); do not wait
#   --price-per-chip-hour=N     price of a chip hour, to print the cost at the end
#   --poll=SECONDS              between two checks, and the first pause before a retry (default 30)
#   --dry-run                   print the commands, one per line, and do not run them
#   --delete                    delete the machine; attached disks stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

other_option() {
  return 1
}

group=tpu-vm ready_state=READY force=()
parse_tpu_options "$@"
if [[ -n $delete ]]; then
  remove
  exit
fi
check_tpu_options 1 "on-demand spot"
all_hosts=(--worker=all)

create() {
  attempt gcloud compute tpus tpu-vm create "$name" "${place[@]}" --accelerator-type="$accelerator" --version="$runtime" \
    "${creation[@]}" --quiet
}

look() {
  state_of state
}

# Ensures that the machine exists and is ready.
ready() {
  while true; do
    look
    case $state in
      READY) return ;;
      absent) enter waiting && { create || back_off "$answer"; } ;;
      PREEMPTED | TERMINATED | UNKNOWN)
        [[ -n $recreate ]] || finish 1 "$name is $state; --recreate creates it again"
        note "$name is $state: creating it again"
        remove
        ;;
      CREATING | STARTING | RESTARTING | REPAIRING | REIMAGING | DELETING | STOPPING)
        note "$name is $state"
        wait_for sleep "$poll"
        ;;
      *) fail "$name is $state; start it or --delete it" ;;
    esac
  done
}

if [[ -n $DRY_RUN ]]; then
  quoted gcloud compute tpus tpu-vm describe "$name" "${place[@]}" --format="value(state)"
  create
  show_training
  exit
fi

train_until_the_end
