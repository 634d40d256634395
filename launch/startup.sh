#!/usr/bin/env bash
# bash startup.sh --repo=URL --commit=SHA [--device=/dev/sdb --mount=/mnt/xlnet] -- train --config=... --workdir=...
#
# Runs on every host: by hand, over ssh from tpu_vm.sh, queued_resource.sh and mig.sh, or at boot as a startup script.
# Mounts the disk, and installs the commit with constraints.txt and the extra `tpu` (once). Checks the host with
# `xlnet-jax doctor`; ends with 2 if three checks, a minute apart, find that a launch would fail. Then it runs `xlnet-jax`
# with the words after --, and reruns it after exit code 42 or after a death by a signal, such as SIGKILL when memory runs
# out. It gives up after the fifth death in a row, each within an hour of the start. Any other exit code is the exit code
# of this script. The script forwards SIGTERM to the trainer once and waits: the trainer saves, and the script ends with
# 42. Commands that use the network are tried ten times, over about twenty minutes. The log has a line for each announced
# maintenance of the host.
# Requires git, Python 3 (uv brings Python 3.12), sudo for the disk and for a missing pip, gcloud for gs://.
#
#   --repo=URL --commit=SHA     the code: a repository, or a git bundle here or in gs://
#   --dir=DIR                   folder for the code (default: ~/xlnet_jax); the command runs in it, and it has configs/
#   --device=PATH --mount=DIR   mounts the disk, which must have a file system (docs/pods_tpu_vm.md says how to make one)
#   --log=FILE                  write the output also to this file (default: ~/xlnet_jax.log)
#   --logs=gs://BUCKET/DIR      copy this log to this folder too, as HOST/START-PART.log: parts of 4 MiB; the newest part is
#                               sent again every minute and at the end
#   --env-file=FILE             read variables from this file, and delete it
#   --at-end=COMMAND            after an exit code that is not retried, a shell runs this command, with the code as $1; like
#                               commands that use the network it is tried up to ten times
#   --job=ID                    sets XLNET_JOB_ID: a run with the same ID is a restart of this run, on any machine
#   --once                      end after every exit code: the caller reruns all hosts
#   --pause=SECONDS             between two runs (default 10)
#   --pid=FILE                  file with the process number for SIGTERM (default: ~/xlnet_jax.pid)
#   --boot                      continue as the systemd service xlnet-jax, and return at once
#   --dry-run                   print the commands, one per line, and do not run them

set -euo pipefail

# uv installs everything else. This version is tested; the newest version of the day is not.
UV=0.13.9

repo="" commit="" dir=${HOME:-/root}/xlnet_jax log=${HOME:-/root}/xlnet_jax.log
pid=${HOME:-/root}/xlnet_jax.pid device="" mount="" job="" once="" pause=10 boot="" dry=""
logs="" env_file="" at_end="" stopping=""
given=("$@")
refuse() {
  echo "startup.sh: $*" >&2
  exit 2
}
while (($# > 0)); do
  case $1 in
    --help) sed -n '2,/^$/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --repo=*) repo=${1#*=} ;;
    --commit=*) commit=${1#*=} ;;
    --dir=*) dir=${1#*=} ;;
    --device=*) device=${1#*=} ;;
    --mount=*) mount=${1#*=} ;;
    --log=*) log=${1#*=} ;;
    --pid=*) pid=${1#*=} ;;
    --logs=*) logs=${1#*=} ;;
    --env-file=*) env_file=${1#*=} ;;
    --at-end=*) at_end=${1#*=} ;;
    --job=*) job=${1#*=} ;;
    --once) once=1 ;;
    --pause=*) pause=${1#*=} ;;
    --boot) boot=1 ;;
    --dry-run) dry=1 ;;
    --) shift; break ;;
    *) refuse "unknown option $1; see --help" ;;
  esac
  shift
done
[[ -n $repo && -n $commit ]] || refuse "--repo=URL and --commit=SHA are needed; see --help"
[[ ${1:-} == train ]] || refuse "give the command after --: train --config=... --workdir=..."
[[ ${device:+1} == "${mount:+1}" ]] || refuse "give --device and --mount together"

run() {
  if [[ -n $dry ]]; then
    printf '%q ' "$@" | sed 's/ $/\n/'
  else
    "$@"
  fi
}

if [[ -n $env_file && -z $dry && -e $env_file ]]; then
  # shellcheck disable=SC1090
  source "$env_file"
  rm -f "$env_file"
fi

if [[ -n $boot ]]; then
  # A separate service, because systemd then sends SIGTERM to this script alone (KillMode=mixed), and not to processes
  # that the trainer has just started. With the default OOMPolicy=stop systemd would also stop this script when the kernel
  # kills a trainer because memory runs out.
  again=()
  for word in "${given[@]}"; do
    [[ $word == --boot ]] || again+=("$word")
  done
  run install -D --mode=755 "$0" /opt/xlnet_jax/startup.sh
  run systemd-run --unit=xlnet-jax --collect --property=KillMode=mixed --property=OOMPolicy=continue \
    --property=TimeoutStopSec=300 --setenv=HOME=/root bash /opt/xlnet_jax/startup.sh "${again[@]}"
  exit
fi

# The log from this start on has parts of 4 MiB. `send_part` sends the part with byte number $1, counted from this start.
part=$((4 << 20)) began=$(date --utc +%Y%m%dT%H%M%SZ) old=$(stat --format=%s "$log" 2>/dev/null || echo 0)
send_part() { # BYTE
  local number=$(($1 / part))
  (
    set +o pipefail # head ends tail
    tail --bytes=+$((old + number * part + 1)) "$log" | head --bytes="$part" |
      gcloud storage cp --quiet - "$logs/$(hostname)/$began-$(printf %04d "$number").log"
  ) >/dev/null 2>"$log.sending"
}

send_log() {
  local next=0 size failed="" byte
  while kill -0 $$ 2>/dev/null; do
    sleep 60 >/dev/null 2>&1
    size=$(($(stat --format=%s "$log") - old))
    for ((byte = next; byte < size; byte += part)); do
      if ! send_part "$byte"; then
        [[ -n $failed ]] || echo "startup.sh: the log was not sent to $logs: $(tail -n 1 "$log.sending"); retrying every minute"
        failed=1
        break
      fi
      failed="" next=$((byte / part * part))
    done
  done
}

# Logs announced maintenance of the host. An announcement comes up to a week before: too early to stop the training. JAX and
# Orbax react to SIGTERM only, which comes when the machine stops. Returns if the host has no metadata server.
watch_maintenance() {
  local found="" before="" code
  local url="http://metadata.google.internal/computeMetadata/v1/instance/upcoming-maintenance?alt=json"
  while kill -0 $$ 2>/dev/null; do
    code=0
    found=$(curl --silent --fail --noproxy '*' --max-time 10 --header "Metadata-Flavor: Google" "$url") || code=$?
    # 22: the server has no announcement.
    ((code == 0 || code == 22)) || return 0
    [[ $found == "$before" ]] || echo "$(date --utc +%FT%TZ) startup.sh: maintenance of this host: ${found:-none any more}"
    before=$found
    sleep 60 >/dev/null 2>&1
  done
}

# Runs a command that uses the network, up to ten times. The pauses double up to five minutes; half of each pause is random,
# so that many hosts do not retry at once.
retry() {
  local wait=10 try
  for try in {1..10}; do
    ! run "$@" || return 0
    [[ -z $stopping ]] || exit 42
    ((try == 10)) || echo "startup.sh: failed, will try again: $*"
    ((try == 10)) || sleep $((wait / 2 + RANDOM % wait / 2))
    wait=$((wait < 150 ? wait * 2 : 300))
  done
  echo "startup.sh: failed 10 times: $*"
  exit 1
}

helpers=()
# shellcheck disable=SC2329 # the trap calls it
ended() {
  local code=$? size
  ((${#helpers[@]} == 0)) || kill "${helpers[@]}" 2>/dev/null || true
  if [[ -n $logs ]]; then
    sleep 1 # for tee to write the last lines
    size=$(($(stat --format=%s "$log") - old))
    ((size <= part)) || send_part $((size - 1 - part)) || true
    ((size == 0)) || send_part $((size - 1)) || echo "startup.sh: the end of the log was not sent to $logs"
  fi
  # A full disk must not prevent the deletion of the machine.
  echo "$code" >"$pid.code" || true
  if [[ -n $at_end ]] && ((code != 42)); then
    (retry bash -c "$at_end" startup.sh "$code") || true
  fi
}

# One script per home directory. When a connection breaks, gcloud reruns the command while the first script still runs:
# then this script follows the log of the first script, and ends with its exit code.
command=$(printf '%q ' "${given[@]}")
if [[ -z $dry ]]; then
  exec 9>>"$pid"
  if ! flock --nonblock 9; then
    running=$(<"$pid")
    [[ $(<"$pid.command") == "$command" ]] ||
      refuse "$running runs another command here: $(<"$pid.command")- stop it first: kill -TERM $running"
    echo "startup.sh: $running already runs this command; following $log"
    tail --follow=name "$log" 9>&- &
    trap 'kill $!' EXIT
    flock 9
    sleep 1 # for tail to read the last lines
    exit "$(<"$pid.code")"
  fi
  trap ended EXIT
  rm -f "$pid.code"
  echo "$command" >"$pid.command"
  echo $$ >"$pid"
  # The output continues after a broken connection: tee still writes the file, and ignores the trainer's signals.
  trap '' HUP
  exec > >(trap '' INT TERM; exec tee -p -a "$log" 9>&-) 2>&1
fi

if [[ -z $dry ]]; then
  watch_maintenance 9>&- &
  helpers=($!)
  if [[ -n $logs ]]; then
    send_log 9>&- &
    helpers+=($!)
  fi
fi

child="" forwarded="" came=""
# A SIGTERM more than ten seconds after the first would end the trainer at once, so this script forwards only one.
forward() {
  came=1 stopping=1
  if [[ -n $child && -z $forwarded ]]; then
    forwarded=1
    kill -TERM "$child" 2>/dev/null || true
  fi
}
trap forward TERM INT

install_commit() {
  local python=$dir/.venv/bin/python bundle=${HOME:-/root}/xlnet_jax.bundle
  if [[ -e $dir/.venv/installed-$commit ]]; then
    return
  fi
  if [[ $repo == gs://* ]]; then
    retry gcloud storage cp --quiet "$repo" "$bundle"
    repo=$bundle
  fi
  [[ ! -f $repo ]] || repo=$(realpath "$repo")
  # Not `git clone`, which refuses the folder that a broken connection leaves behind.
  run git init --quiet "$dir"
  retry git -C "$dir" fetch --quiet --force "$repo" HEAD "+refs/heads/*:refs/remotes/origin/*" "+refs/tags/*:refs/tags/*"
  run git -C "$dir" checkout --quiet --force "$commit"
  # The images of Compute Engine may have no pip.
  [[ -n $dry ]] || python3 -m pip --version >/dev/null 2>&1 ||
    retry sudo sh -c 'apt-get update --quiet && apt-get install --quiet --yes python3-pip'
  # Newer systems need this variable; an older pip ignores it.
  retry env PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user "uv==$UV"
  retry python3 -m uv venv --quiet --clear --python=3.12 "$dir/.venv"
  retry python3 -m uv pip install --quiet --python="$python" --constraint="$dir/constraints.txt" --editable="${dir}[tpu]"
  run touch "$dir/.venv/installed-$commit"
}

if [[ -n $mount ]] && ! mountpoint --quiet "$mount"; then
  run sudo mkdir -p "$mount"
  run sudo mount -o discard,defaults "$device" "$mount"
  # Only this user may write, not all users.
  [[ -w $mount ]] || run sudo chown "$(id -u)" "$mount"
fi
install_commit
check=(doctor)
for word; do
  case $word in
    --workdir=*) check+=("$word") ;;
    --config.data.corpus=*) check+=("--corpus=${word#*=}") ;;
  esac
done
if [[ -n $dry ]]; then
  run "$dir/.venv/bin/xlnet-jax" "${check[@]}"
  run "$dir/.venv/bin/xlnet-jax" "$@"
  exit
fi
[[ -z $job ]] || export XLNET_JOB_ID=$job
cd "$dir"

# Sleeps in small steps, to react to a signal at once.
idle() { # SECONDS
  local waited
  for ((waited = 0; waited < $1; waited++)); do
    [[ -n $stopping ]] || sleep 1
  done
}

# Only exit code 2 means that a launch would fail. The fault may pass, such as a device that starts slowly or rights that
# were given a minute ago, so there are three tries.
for try in 1 2 3; do
  code=0
  "$dir/.venv/bin/xlnet-jax" "${check[@]}" 9>&- || code=$?
  [[ $code == 2 && -z $stopping ]] || break
  ((try < 3)) || exit 2
  echo "startup.sh: will check again in $((6 * pause)) s"
  idle $((6 * pause))
done

deaths=0
while [[ -z $stopping ]]; do
  started=$SECONDS
  echo "$(date --utc +%FT%TZ) startup.sh: xlnet-jax $*"
  "$dir/.venv/bin/xlnet-jax" "$@" 9>&- &
  child=$!
  # A SIGTERM came before the child started.
  [[ -z $stopping ]] || forward
  while true; do
    came="" code=0
    wait "$child" || code=$?
    # A signal ends `wait` early, with a code that is not from the trainer: wait again.
    if [[ -z $came ]] || ! kill -0 "$child" 2>/dev/null; then
      break
    fi
  done
  # If the trainer ended in between, its exit code is still available.
  if [[ -n $came ]]; then
    last=0
    wait "$child" 2>/dev/null || last=$?
    ((last == 127)) || code=$last
  fi
  child=""
  echo "$(date --utc +%FT%TZ) startup.sh: xlnet-jax ended with $code"
  # A trainer that a signal killed has a code of 128 plus the number of the signal. If this host stops, 42 makes the caller
  # train again later: SIGTERM also kills a trainer that does not handle it yet, which has nothing to save.
  if ((code <= 128 || code == 130)); then
    deaths=0
  elif [[ -n $stopping ]]; then
    code=42
  elif [[ -z $once ]]; then
    if ((SECONDS - started < 3600)); then deaths=$((deaths + 1)); else deaths=0; fi
    ((deaths == 5)) || code=42
  fi
  ((code == 42)) && [[ -z $once ]] || exit "$code"
  idle "$pause"
done
exit 42
