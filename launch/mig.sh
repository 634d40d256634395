#!/usr/bin/env bash
# launch/mig.sh --name=xlnet --project=P --zone=us-east5-b --accelerator=v6e-64 --repo=https://... --commit=SHA \
#   [--capacity=spot --recreate] [--autodelete] -- train --config=configs/xlnet_base.py --workdir=gs://B/run ...
# launch/mig.sh --name=xlnet --project=P --zone=us-east5-b --delete
#
# Trains on TPU VMs of Compute Engine, the successor of the Cloud TPU API. Creates a workload policy (for several hosts), an
# instance template, and a managed instance group for one slice. Waits until all hosts of the group run, installs the commit
# on them with launch/startup.sh, and trains. Ends when the training ends, with its exit code; after 42 (interrupted and
# saved) it reruns the same command on all hosts. Failures that may pass (no capacity, UNAVAILABLE, no connection) are
# retried with growing pauses; wrong requests and missing rights end this script. The hosts exist, and cost money, until
# --delete or --autodelete. Requires gcloud with the rights of roles/compute.instanceAdmin.v1.
#
#   --name --project --zone     of the group; template and policy have the same name
#   --accelerator=TYPE          v5p, v6e or tpu7x, such as v5p-128, v6e-256, tpu7x-4x4x8; a number gets its most compact shape
#   --runtime=FAMILY            family of images of ubuntu-os-accelerator-images (default: the one for the type)
#   --repo=URL|DIR --commit=SHA the code: a repository that `git clone` reads on the hosts without a prompt, or a local
#                               checkout, whose commit is copied to the hosts as a git bundle
#   --staging=gs://BUCKET/DIR   with --boot and --repo=DIR: where the hosts read the bundle
#   --env=NAME[,NAME...]        set these variables of your environment on the hosts too, such as a token; scp copies them
#                               in a file for the owner alone, so they are not in commands or metadata
#   --shared-workdir            for several hosts: confirms that the folder of --workdir is mounted on all hosts
#   --logs=gs://BUCKET/DIR      copy the log of every host to this folder, as NAME/HOST/, from the first command to the end
#   --disk=SOURCE               for one host: a disk for work directory and corpus; startup.sh mounts it
#   --device=PATH --mount=DIR   the disk's device on the host (default /dev/disk/by-id/google-xlnet), and its mount point
#                               (default /mnt/xlnet)
#   --capacity=KIND             on-demand (default); spot, which may be preempted; flex-start, which ends after
#                               --max-run-duration; reservation=NAME, also in calendar mode
#   --max-run-duration=TIME     of flex-start, 7d at most (default 7d)
#   --internal-ips --network=N --subnetwork=N --service-account=MAIL     of the hosts
#   --tunnel-through-iap        reach hosts without external addresses through Identity-Aware Proxy
#   --recreate                  delete and create again, without a limit, hosts that are preempted, or that run but are
#                               unreachable five times in a row
#   --give-up-after=TIME        end after this time of failures in a row: 90m, 6h, 2d, never (default: never with
#                               --recreate, otherwise 30m)
#   --autodelete[=any]          delete all when the training is done (exit code 0); with =any also after any other final
#                               exit code and after giving up. Ctrl-C here never deletes
#   --boot                      the hosts start training at every boot (log: journalctl -u xlnet-jax); do not wait
#   --price-per-chip-hour=N     price of a chip hour, to print the cost at the end
#   --poll=SECONDS              between two checks, and the first pause before a retry (default 30)
#   --dry-run                   print the commands, one per line, and do not run them
#   --delete                    delete group, template and policy; attached disks stay

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

max_run=7d
other_option() {
  case $1 in
    --max-run-duration=*) max_run=${1#*=} ;;
    *) return 1 ;;
  esac
}

# Sets `creation`, the flags of the template.
creation_flags() {
  creation=(--machine-type="$machine-$((hosts == 1 ? chips : 4))t" --image-family="$runtime"
    --image-project=ubuntu-os-accelerator-images --boot-disk-size=100GB --maintenance-policy=TERMINATE --scopes=cloud-platform)
  [[ $machine != tpu7x-* ]] || creation+=(--boot-disk-type=hyperdisk-balanced)
  case $capacity in
    spot) creation+=(--provisioning-model=SPOT --instance-termination-action=STOP) ;;
    flex-start)
      creation+=(--provisioning-model=FLEX_START --max-run-duration="$max_run" --instance-termination-action=DELETE)
      ;;
    reservation=*)
      creation+=(--provisioning-model=RESERVATION_BOUND --instance-termination-action=DELETE
        --reservation-affinity=specific --reservation="${capacity#*=}")
      ;;
  esac
  [[ -z $disk ]] || creation+=(--disk="name=${disk##*/},device-name=xlnet,mode=rw,auto-delete=no")
  [[ -z $service_account ]] || creation+=(--service-account="$service_account")
  [[ -z $network ]] || creation+=(--network="$network")
  [[ -z $subnetwork ]] || creation+=(--region="$region" --subnet="$subnetwork")
  [[ -z $internal_ips ]] || creation+=(--no-address)
}

remove() {
  refused=0
  drop gcloud compute instance-groups managed delete "$name" "${place[@]}" --quiet
  drop_template
  drop_policy
}

drop_template() {
  drop gcloud compute instance-templates delete "$name" "${globally[@]}"
}

drop_policy() {
  drop gcloud compute resource-policies delete "$name" "${regionally[@]}"
}

# A gcloud command reaches one host, so this runs one command per host, all at once. Returns 0 if all commands return 0.
on_hosts() { # scp|ssh|start [WORD...]
  local one pids=() code=0
  local -n words=$1
  for one in "${names[@]}"; do
    host_commands "$one"
    "${words[@]}" "${@:2}" &
    pids+=($!)
  done
  for one in "${pids[@]}"; do
    wait "$one" || code=$?
  done
  return "$code"
}

host_commands() { # HOST
  local where=("${place[@]}" --quiet)
  [[ -z $iap ]] || where+=(--tunnel-through-iap)
  scp=(gcloud compute scp "${files[@]}" "$1:" "${where[@]}")
  ssh=(gcloud compute ssh "$1" "${where[@]}")
  start_command
}

ready_state=RUNNING device=/dev/disk/by-id/google-xlnet
parse_tpu_options "$@"
need project "$project" "$WORD"
region=${zone%-*}
globally=(--project="$project" --global --quiet) regionally=(--project="$project" --region="$region" --quiet)
if [[ -n $delete ]]; then
  remove
  exit
fi
need max-run-duration "$max_run" "${NUMBER}[smhd]"
family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e
case $accelerator in
  v5p-*) machine=ct5p-hightpu ;;
  v6e-*) machine=ct6e-standard ;;
  tpu7x-*) machine=tpu7x-standard family=ubuntu-accel-2404-amd64-tpu-tpu7x ;;
  *) refuse "--accelerator=$accelerator: Compute Engine has v5p, v6e and tpu7x, such as v6e-64" ;;
esac
runtime=${runtime:-$family}
check_tpu_options 1 "on-demand spot flex-start reservation" 3

# Prints the shape of the slice; of cubes, the most compact shape.
topology() {
  local shapes shape a b found=${accelerator##*-}
  [[ $found != *x* ]] || { echo "$found"; return; }
  for ((a = 4; a ** 3 <= chips; a += 4)); do
    for ((b = a; a * b * b <= chips; b += 4)); do
      ((chips % (a * b * 4))) || found=${a}x${b}x$((chips / a / b))
    done
  done
  read -r _ _ _ _ _ _ _ _ _ shapes < <(rows_of 3 "${accelerator%-*}")
  for shape in $shapes; do
    [[ $shape == cubes ]] || ((${shape//x/*} != chips)) || found=$shape
  done
  echo "$found"
}

# The hosts of a slice are created together (bulk), and so is a single host of flex-start or of a reservation. A failed host
# stays as it is: --recreate replaces all hosts.
together=()
[[ $hosts == 1 && $capacity == @(on-demand|spot) ]] || together+=(--target-size-policy-mode=bulk)
((hosts == 1)) || together+=(--workload-policy="projects/$project/regions/$region/resourcePolicies/$name")

create_all() {
  ((hosts == 1)) || made gcloud compute resource-policies create workload-policy "$name" "${regionally[@]}" \
    --type=HIGH_THROUGHPUT --accelerator-topology="$(topology)" || return
  made gcloud compute instance-templates create "$name" --project="$project" "${creation[@]}" --quiet || return
  attempt gcloud compute instance-groups managed create "$name" "${place[@]}" --template="$name" --size="$hosts" \
    --default-action-on-vm-failure=do-nothing "${together[@]}" --quiet
}

ours=""
made() { # GCLOUD...
  attempt "$@" || [[ -n $ours && $answer == *" already exists"* ]]
}

# A template or policy of an earlier launch may have other options: it is deleted, once.
create() {
  until create_all; do
    [[ -z $ours && $answer == *" already exists"* && $answer != *instanceGroupManagers* ]] || return
    drop_template
    drop_policy
    ours=1
  done
}

error="lastAttempt.errors.errors[0]"
hosts_now=(gcloud compute instance-groups managed list-instances "$name" "${place[@]}"
  --format="value[separator=|](name,instanceStatus,currentAction,$error.code,$error.message)")

# Sets `state` of the group, the `names` of its hosts, and `problem`, the reason why hosts are missing. A group with missing
# hosts is INCOMPLETE, unless it is `new`.
names=() problem="" new=""
look() {
  local one status action code message running=0 gone=""
  ask "${hosts_now[@]}"
  names=() problem="" state=CREATING
  if [[ $answer == absent ]]; then
    state=absent
    return
  fi
  while IFS="|" read -r one status action code message; do
    [[ $action =~ ^[A-Z_]+$ ]] || continue # a warning of gcloud
    names+=("$one")
    [[ -z $code ]] || problem="$code: $message"
    case $status,$action in
      RUNNING,NONE) running=$((running + 1)) ;;
      ,NONE) state=FAILED ;; # nothing tries again
      PENDING_STOP,* | STOP*,* | SUSPEND*,* | TERMINATED,* | DEPROVISIONING,*) gone=$status ;;
    esac
  done <<<"$answer"
  if [[ -n $gone ]]; then
    state=$gone
  elif ((running == hosts)); then
    state=RUNNING new=""
  elif ((${#names[@]} < hosts)) && [[ -z $new ]]; then
    state=INCOMPLETE
  fi
}

# Ensures that all hosts run. While there is no capacity, the group tries again by itself.
ready() {
  local before=""
  while true; do
    look
    [[ $state == "$before" || $state == absent || $state == RUNNING ]] || note "$name is $state"
    before=$state
    case $state in
      RUNNING) return ;;
      absent) enter waiting && new=1 && { create || back_off "$answer"; } ;;
      CREATING | FAILED)
        enter waiting
        if [[ $problem =~ $PERMANENT ]]; then
          remove
          finish 1 "$name has no hosts and was deleted: $problem"
        fi
        [[ $state == CREATING ]] || remove
        if [[ -n $problem ]]; then back_off "$name has no hosts: $problem"; else wait_for sleep "$poll"; fi
        ;;
      *)
        [[ $capacity != flex-start ]] || time_is_over
        [[ -n $recreate ]] || finish 1 "$name is $state; --recreate creates it again"
        remove
        ;;
    esac
  done
}

if [[ -n $DRY_RUN ]]; then
  create
  quoted "${hosts_now[@]}"
  show_training
  exit
fi

train_until_the_end
