#!/usr/bin/env bash
# source launch/lib.sh
#
# What the launch scripts share: no command of its own, nothing happens when it is read. Requires bash 4.4.
# shellcheck disable=SC2034 # the scripts that read this file use the variables
set -euo pipefail

PROGRAM=$(basename "$0")
DRY_RUN=""
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The comment that a script begins with, for --help.
usage() {
  sed -n '2,/^$/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 0
}

# Bad usage: one line, exit code 2.
refuse() {
  echo "$PROGRAM: $*" >&2
  exit 2
}

# Anything else that ends a script: one line, exit code 1.
fail() {
  echo "$PROGRAM: $*" >&2
  exit 1
}

note() {
  echo "$PROGRAM: $*" >&2
}

# A command as a line that a shell reads back as the same words.
quoted() {
  local word line=""
  for word; do
    line+=" $(printf '%q' "$word")"
  done
  echo "${line:1}"
}

# Runs a command, or prints it.
run() {
  if [[ -n $DRY_RUN ]]; then
    quoted "$@"
  else
    "$@"
  fi
}

# need NAME VALUE PATTERN: an option that must be there and look right.
need() {
  [[ -n $2 ]] || refuse "--$1=... is missing; see --help"
  [[ $2 =~ ^($3)$ ]] || refuse "--$1=$2 is not of the form $3"
}

NAME='[a-z]([-a-z0-9]*[a-z0-9])?'
WORD='[-A-Za-z0-9_.:/@+]+'
NUMBER='[1-9][0-9]*'

# Hosts of an accelerator type as Cloud TPU names them; empty if the type is unknown. In names of v2 to v5p the number
# counts cores, otherwise chips; v2 to v5p have four chips to a host, v5e and v6e eight where one host is enough.
hosts_of() {
  local size=${1##*-}
  [[ $size =~ ^[1-9][0-9]*$ ]] || return 0
  case $1 in
    v2-* | v3-* | v4-* | v5p-*) echo $(((size + 7) / 8)) ;;
    v5litepod-* | v6e-*) if ((size <= 8)); then echo 1; else echo $(((size + 3) / 4)); fi ;;
  esac
}

runtime_of() {
  case $1 in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

# What the trainer of this version cannot do is refused here, before anything costs money: one process drives all
# devices it sees (no jax.distributed), and the work directory is a folder. When the trainer learns it, this goes.
check_hosts() { # HOSTS SLICES ALLOWED
  [[ -z $3 ]] || return 0
  (($1 * $2 == 1)) || refuse "$1 hosts in each of $2 slices: this version trains in one process on one host;" \
    "take a slice with a single host (such as v6e-8), or --several-hosts with a version that can"
}

check_train() {
  local word workdir=""
  [[ ${1:-} == train ]] || refuse "after -- comes the command: train --config=... --workdir=..."
  for word; do
    [[ $word != --workdir=* ]] || workdir=${word#--workdir=}
  done
  [[ -n $workdir ]] || refuse "the command has no --workdir=DIR"
  [[ $workdir != *://* ]] || refuse "--workdir=$workdir: the work directory must be a folder, such as on a mounted disk"
  [[ $workdir == /* ]] || refuse "--workdir=$workdir: give an absolute path"
}

# What tpu_vm.sh and queued_resource.sh have in common; unknown options go to `other_option` of the script.
name="" zone="" project="" accelerator="" runtime="" repo="" commit="" disk="" device=/dev/sdb mount=/mnt/xlnet
service_account="" network="" subnetwork="" spot="" reserved="" internal_ips="" several_hosts="" delete="" recreate=""
boot="" poll=30 train=() all_hosts=()

parse_tpu_options() {
  (($# > 0)) || refuse "no options; see --help"
  while (($# > 0)); do
    case $1 in
      --help) usage ;;
      --dry-run) DRY_RUN=1 ;;
      --name=*) name=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --accelerator=*) accelerator=${1#*=} ;;
      --runtime=*) runtime=${1#*=} ;;
      --repo=*) repo=${1#*=} ;;
      --commit=*) commit=${1#*=} ;;
      --disk=*) disk=${1#*=} ;;
      --device=*) device=${1#*=} ;;
      --mount=*) mount=${1#*=} ;;
      --service-account=*) service_account=${1#*=} ;;
      --network=*) network=${1#*=} ;;
      --subnetwork=*) subnetwork=${1#*=} ;;
      --poll=*) poll=${1#*=} ;;
      --spot) spot=1 ;;
      --reserved) reserved=1 ;;
      --internal-ips) internal_ips=1 ;;
      --several-hosts) several_hosts=1 ;;
      --boot) boot=1 ;;
      --recreate) recreate=1 ;;
      --delete) delete=1 ;;
      --) shift; train=("$@"); break ;;
      *) other_option "$1" || refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  need name "$name" "$NAME"
  need zone "$zone" "$NAME"
  place=(--zone="$zone")
  [[ -z $project ]] || place+=(--project="$project")
}

# After the options are known, for everything but --delete.
check_tpu_options() { # SLICES
  local hosts
  need accelerator "$accelerator" "$NAME"
  need repo "$repo" ".+"
  need commit "$commit" "[0-9a-f]{7,40}"
  need poll "$poll" "[0-9]+"
  [[ -z $spot || -z $reserved ]] || refuse "--spot and --reserved exclude each other"
  hosts=$(hosts_of "$accelerator")
  [[ -n $hosts ]] || refuse "--accelerator=$accelerator: not a type of Cloud TPU, such as v4-8, v5litepod-8, v6e-8"
  check_hosts "$hosts" "$1" "$several_hosts"
  check_train "${train[@]}"
  [[ -n $runtime ]] || runtime=$(runtime_of "$accelerator")
  # The command of every host.
  host=(--repo="$repo" --commit="$commit")
  [[ -z $disk ]] || host+=(--device="$device" --mount="$mount")
  host+=(-- "${train[@]}")
  # Flags that both kinds of create know.
  creation=()
  [[ -z $spot ]] || creation+=(--spot)
  [[ -z $reserved ]] || creation+=(--reserved)
  [[ -z $disk ]] || creation+=(--data-disk="mode=read-write,source=$disk")
  [[ -z $service_account ]] || creation+=(--service-account="$service_account" --scopes=cloud-platform)
  [[ -z $network ]] || creation+=(--network="$network")
  [[ -z $subnetwork ]] || creation+=(--subnetwork="$subnetwork")
  [[ -z $internal_ips ]] || creation+=(--internal-ips)
  if [[ -n $boot ]]; then
    boot_script=$(mktemp "${TMPDIR:-/tmp}/xlnet_boot.XXXXXX")
    trap 'rm -f "$boot_script"' EXIT
    # The metadata server hands a script over without arguments: it brings its own.
    { printf '#!/usr/bin/env bash\n(($# > 0)) || set -- --boot %s\n' "$(quoted "${host[@]}")"; cat "$HERE/startup.sh"; } >"$boot_script"
    creation+=(--metadata-from-file="startup-script=$boot_script")
  fi
}

# The state of a resource, `absent` if there is none; any other failure of gcloud ends the script.
state_of() { # FIELD GROUP...
  local field=$1 found
  shift
  if found=$(gcloud compute tpus "$@" describe "$name" "${place[@]}" --format="value($field)" 2>&1); then
    echo "${found##*$'\n'}"
  elif [[ $found == *NOT_FOUND* ]]; then
    echo absent
  else
    fail "gcloud: ${found//$'\n'/ }"
  fi
}

# Copies startup.sh to all hosts and runs it there; the exit code is that of ssh, which is that of the hosts.
train_on_hosts() { # GROUP..., with its flags for all hosts in `all_hosts`
  local code=0
  run gcloud compute tpus "$@" scp "$HERE/startup.sh" "$name:xlnet_startup.sh" "${place[@]}" "${all_hosts[@]}" --quiet ||
    return $?
  run gcloud compute tpus "$@" ssh "$name" "${place[@]}" "${all_hosts[@]}" --quiet \
    --ssh-flag="-o ServerAliveInterval=30" --command="bash xlnet_startup.sh $(quoted "${host[@]}")" || code=$?
  return "$code"
}
