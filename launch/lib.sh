#!/usr/bin/env bash
# source launch/lib.sh
#
# Functions that the launch scripts share. Reading this file runs no command. Requires bash 4.4.
# shellcheck disable=SC2034,SC2154 # variables of and for the scripts that read this file
set -euo pipefail

PROGRAM=$(basename "$0")
DRY_RUN=""
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Options that more than one script has.
name="" zone="" project="" accelerator="" device=/dev/sdb mount=/mnt/xlnet service_account="" network="" subnetwork=""
capacity=on-demand shared_workdir="" delete="" hosts=1 train=()

# Prints the comment at the start of a script, for --help.
usage() {
  sed -n '2,/^$/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 0
}

# Bad usage: one line, exit code 2.
refuse() {
  echo "$PROGRAM: $*" >&2
  exit 2
}

# Any other error: one line, exit code 1.
fail() {
  echo "$PROGRAM: $*" >&2
  exit 1
}

note() {
  echo "$PROGRAM: $*" >&2
}

# Reads an option that all scripts for training have; returns 1 for any other option.
common_option() { # OPTION
  case $1 in
    --help) usage ;;
    --*=) refuse "$1 has no value: is a variable empty in this shell?" ;;
    --dry-run) DRY_RUN=1 ;;
    --name=*) name=${1#*=} ;;
    --capacity=*) capacity=${1#*=} ;;
    --shared-workdir) shared_workdir=1 ;;
    --delete) delete=1 ;;
    *) return 1 ;;
  esac
}

# Prints a command as one line, quoted so that a shell reads the same words.
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
    wait_for "$@"
  fi
}

# Runs a command so that a signal to this script acts at once.
child=""
wait_for() { # COMMAND...
  local code=0
  "$@" <&0 &
  child=$!
  wait "$child" || code=$?
  child=""
  return "$code"
}

# Ends a process and then its descendants, such as the ssh of gcloud. A shell that lives would report the end of its child.
end() { # PID
  local one children
  children=$(pgrep -P "$1") || true
  kill "$1" 2>/dev/null || true
  for one in $children; do
    end "$one"
  done
}

# After this call a signal ends the script at once, with one line that says what continues and how to stop it.
say_at_signals() { # MESSAGE
  leaves=$1
  trap 'interrupted SIGINT 130' INT
  trap 'interrupted SIGTERM 143' TERM
  trap 'interrupted SIGHUP 129' HUP
}

interrupted() { # SIGNAL CODE
  trap '' INT TERM HUP
  [[ -z $child ]] || end "$child"
  note "ended by $1: $leaves"
  exit "$2"
}

# need NAME VALUE PATTERN: an option that must be given and match the pattern.
need() {
  [[ -n $2 ]] || refuse "--$1=... is missing; see --help"
  [[ $2 =~ ^($3)$ ]] || refuse "--$1=$2 is not of the form $3"
}

NAME='[a-z]([-a-z0-9]{0,61}[a-z0-9])?'
WORD='[-A-Za-z0-9_.:/@+]+'
NUMBER='[1-9][0-9]*'
BUCKET='gs://[a-z0-9][^/]*'
SIZE='[1-9][0-9]{0,4}'
SHAPE="$SIZE(x$SIZE){1,2}"

# Prints the matching rows of the table of slices that can be rented; comments in the table name the columns.
rows_of() { # COLUMN VALUE
  awk -v column="$1" -v value="$2" '!/^#/ && $column == value' "$HERE/../xlnet_jax/aot/slices.txt"
}

# Whether a slice of this shape, such as 4x4x8, or of this number of chips can be rented.
rented() { # SHAPE|CHIPS LARGEST SHAPES...
  local shape a b c
  for shape in "${@:3}"; do
    case $shape,$1 in
      cubes,*x*)
        IFS=x read -r a b c <<<"$1"
        ((a % 4 == 0 && b % 4 == 0 && c % 4 == 0 && a <= b && b <= c && a * b * c <= $2)) && return
        ;;
      cubes,*) (($1 > 0 && $1 % 64 == 0 && $1 <= $2)) && return ;;
      *) [[ $1 == "$shape" || $1 == $((${shape//x/*})) ]] && return ;;
    esac
  done
  return 1
}

# Prints the number of hosts of all slices, from the name of their type, such as v5p-128; launch/mig.sh also accepts a shape,
# such as v5p-4x4x8. Refuses a type that cannot be rented.
hosts_of() { # OPTION COLUMN TYPE SLICES: column 2 has the names of gcloud, column 3 those of launch/mig.sh
  local size=${3##*-} cores="" single largest joined shapes chips
  read -r _ _ _ _ cores single largest joined _ shapes < <(rows_of "$2" "${3%-*}") || true
  [[ -n $cores && $size =~ ^($SIZE|$SHAPE)$ && ($2 == 3 || $size != *x*) ]] ||
    refuse "--$1=$3: not a type of Cloud TPU, such as v4-8, v5litepod-8, v6e-8"
  [[ $size == *x* ]] || size=$((size % cores ? 0 : size / cores))
  # shellcheck disable=SC2086 # the shapes are words
  rented "$size" "$largest" $shapes || refuse "--$1=$3: there is no such slice; ${3%-*} has the" \
    "shapes ${shapes/cubes/and multiples of 4}, up to $largest chips; a chip counts for $cores in ${3%-*}-NUMBER"
  [[ $4 == 1 || $joined == yes ]] || refuse "--slices=$4: $3 cannot be joined, v4 and later can"
  chips=$((${size//x/*}))
  echo $(($4 * (chips <= single ? 1 : chips / 4)))
}

# Refuses a kind of capacity that the script's tool or the TPU does not have.
check_capacity() { # COLUMN NAME KINDS: column and name of a row of the table of slices, and the kinds that the tool has
  local flex
  need capacity "$capacity" "on-demand|spot|flex-start|(reservation|calendar)=$NAME"
  [[ " $3 " == *" ${capacity%%=*} "* ]] || refuse "--capacity=$capacity: $PROGRAM has ${3// /, }"
  read -r _ _ _ _ _ _ _ _ flex _ < <(rows_of "$1" "$2") || true
  [[ $capacity != flex-start || $flex == yes ]] || refuse "--capacity=flex-start: $2 does not have it; v5e and later do"
}

runtime_of() {
  case $1 in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

# Checks the command before anything costs money. Requires `hosts`: the number of hosts of all slices together.
check_train() {
  local word workdir=""
  [[ ${1:-} == train ]] || refuse "give the command after --: train --config=... --workdir=..."
  for word; do
    [[ $word != --*=gs:///* ]] || refuse "$word has no bucket: is a variable empty in this shell?"
    [[ $word != --workdir=* ]] || workdir=${word#--workdir=}
  done
  [[ -n $workdir ]] || refuse "the command has no --workdir=gs://BUCKET/DIR or --workdir=/DIR"
  case $workdir in
    gs://[a-z0-9]*/?*) return ;;
    *://*) refuse "--workdir=$workdir: give a bucket as gs://BUCKET/DIR" ;;
    /*) ;;
    *) refuse "--workdir=$workdir: give gs://BUCKET/DIR or an absolute path" ;;
  esac
  ((hosts == 1)) || [[ -n $shared_workdir ]] || refuse "--workdir=$workdir is a different folder on each of the $hosts" \
    "hosts: give --workdir=gs://BUCKET/DIR, or --shared-workdir if it is mounted on all of them"
}

# The trainer warns if a save takes longer than this.
pass_grace() { # SECONDS
  train=(train "--config.checkpoint.grace_seconds=$1" "${train[@]:1}")
}

# Prints the command of a pod: `doctor` as in startup.sh, then the trainer. Only exit code 2 of `doctor` stops the launch.
# The shell becomes the trainer, which then gets SIGTERM. SIGTERM during `doctor` ends the pod with 143, so it restarts.
doctor_first() {
  local check=(doctor) word
  for word in "${train[@]}"; do
    case $word in
      --workdir=*) check+=("$word") ;;
      --config.data.corpus=*) check+=("--corpus=${word#*=}") ;;
    esac
  done
  echo "trap 'exit 143' TERM; xlnet-jax $(quoted "${check[@]}") || [ \$? != 2 ] || exit 2; exec xlnet-jax"
}

# For a script that only sends requests to a cluster: the line after a signal.
say_what_the_cluster_does() {
  say_at_signals "if $name is in the cluster already, it goes on there, and its nodes cost money; --delete deletes it"
}

# For GKE: `grace` is the time of the pod and of the trainer. A Spot node gives 15 seconds, and with
# launch/gke/spot_nodes.yaml 105, whatever a pod requests.
check_grace() {
  grace=${grace:-$([[ $capacity == spot ]] && echo 15 || echo 600)}
  need grace "$grace" "$NUMBER"
  [[ $capacity != spot ]] || ((grace <= 105)) ||
    refuse "--grace=$grace: a Spot node gives 105 seconds at most, and more than 15 with launch/gke/spot_nodes.yaml"
  pass_grace "$grace"
}
