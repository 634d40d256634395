#!/usr/bin/env bash
# launch/tpu_vm.sh --name=xlnet --zone=us-east5-b --accelerator=v6e-8 --repo=https://... --commit=$(git rev-parse HEAD) \
#   [--spot] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/tpu_vm.sh --name=xlnet --zone=us-east5-b --delete
#
# Creates a Cloud TPU VM, or uses the existing one with that name; installs the commit on its hosts with
# launch/startup.sh, and trains there. Ends when the training ends, with its exit code; after 42 (interrupted and saved)
# it reruns the same command on all hosts. The machine exists, and costs money, until --delete. Requires gcloud with the
# rights of roles/tpu.admin.
#
#   --name --zone --project     of the machine
#   --accelerator=TYPE          such as v4-8, v5litepod-16, v5p-128, v6e-256
#   --runtime=VERSION           software of the TPU VM (default: the one for the type)
#   --repo=URL --commit=SHA     the code: a repository that `git clone` reads on the hosts without a prompt
#   --shared-workdir            for several hosts: the folder of --workdir is mounted on all of them
#   --flags=CHIP[,CHIP...]      LIBTPU_INIT_ARGS of launch/flags/CHIP.txt (default: none)
#   --disk=SOURCE               for one host: a disk to attach; startup.sh mounts it, work directory and corpus can be there
#   --device=PATH --mount=DIR   the disk's device there (default /dev/sdb), and its mount point (default /mnt/xlnet)
#   --spot --reserved --internal-ips --network=N --subnetwork=N --service-account=MAIL     as gcloud has them
#   --recreate                  a preempted machine is deleted and created again, without a limit
#   --boot                      the machine starts training at every boot (log: journalctl -u xlnet-jax); do not wait
#   --poll=SECONDS              between two checks (default 30)
#   --dry-run                   print the commands, one per line, and do not run them
#   --delete                    delete the machine; attached disks stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

other_option() {
  return 1
}

parse_tpu_options "$@"
if [[ -n $delete ]]; then
  run gcloud compute tpus tpu-vm delete "$name" "${place[@]}" --quiet
  exit
fi
check_tpu_options 1
all_hosts=(--worker=all)

create() {
  run gcloud compute tpus tpu-vm create "$name" "${place[@]}" --accelerator-type="$accelerator" --version="$runtime" \
    "${creation[@]}" --quiet
}

# Ensures that the machine exists and is ready.
ready() {
  local state
  while true; do
    state=$(state_of state tpu-vm)
    case $state in
      READY) return ;;
      absent) create ;;
      PREEMPTED | TERMINATED)
        [[ -n $recreate ]] || fail "$name is $state; --recreate creates it again, --delete deletes it"
        note "$name is $state: creating it again"
        run gcloud compute tpus tpu-vm delete "$name" "${place[@]}" --quiet
        ;;
      CREATING | STARTING | RESTARTING | REPAIRING | REIMAGING | DELETING | STOPPING)
        note "$name is $state"
        sleep "$poll"
        ;;
      *) fail "$name is $state; start it or --delete it" ;;
    esac
  done
}

if [[ -n $DRY_RUN ]]; then
  run gcloud compute tpus tpu-vm describe "$name" "${place[@]}" --format="value(state)"
  create
  [[ -n $boot ]] || train_on_hosts tpu-vm
  exit
fi

train_until_the_end tpu-vm state READY ready
