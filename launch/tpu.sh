#!/usr/bin/env bash
# source launch/tpu.sh
#
# Shared by tpu_vm.sh, queued_resource.sh and mig.sh: options, retries of gcloud, and training until the end. Reading this
# file runs no command. Each script sets `ready_state`, and defines `other_option`, `look`, which sets `state`, and `ready`,
# which ensures that the machines exist. tpu_vm.sh and queued_resource.sh also set `group` (tpu-vm or queued-resources) and
# `force`; mig.sh redefines the last functions of this file, which use the Cloud TPU API.
# shellcheck disable=SC2034,SC2154 # variables of lib.sh and of the script
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The common options; unknown options go to `other_option` of the script.
runtime="" repo="" commit="" staging="" disk="" internal_ips="" iap="" recreate="" give_up="" autodelete="" logs="" env=""
boot="" price="" poll=30 files=() all_hosts=() creation=()

parse_tpu_options() {
  (($# > 0)) || refuse "no options; see --help"
  while (($# > 0)); do
    common_option "$1" || case $1 in
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --accelerator=*) accelerator=${1#*=} ;;
      --runtime=*) runtime=${1#*=} ;;
      --repo=*) repo=${1#*=} ;;
      --commit=*) commit=${1#*=} ;;
      --staging=*) staging=${1#*=} ;;
      --logs=*) logs=${1#*=} ;;
      --env=*) env=${1#*=} ;;
      --give-up-after=*) give_up=${1#*=} ;;
      --autodelete) autodelete=success ;;
      --autodelete=any) autodelete=any ;;
      --tunnel-through-iap) iap=1 ;;
      --disk=*) disk=${1#*=} ;;
      --device=*) device=${1#*=} ;;
      --mount=*) mount=${1#*=} ;;
      --service-account=*) service_account=${1#*=} ;;
      --network=*) network=${1#*=} ;;
      --subnetwork=*) subnetwork=${1#*=} ;;
      --poll=*) poll=${1#*=} ;;
      --price-per-chip-hour=*) price=${1#*=} ;;
      --internal-ips) internal_ips=1 ;;
      --boot) boot=1 ;;
      --recreate) recreate=1 ;;
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

# Checks and completes the options; not called for --delete.
check_tpu_options() { # SLICES KINDS of capacity [COLUMN of the table of slices]
  local column=${3:-2} cores size
  need accelerator "$accelerator" "$NAME"
  need repo "$repo" ".+"
  [[ -d $repo || $repo == *:* ]] || refuse "--repo=$repo is neither a folder here nor an address"
  need commit "$commit" "[0-9a-f]{7,40}"
  need poll "$poll" "0|$NUMBER"
  [[ -z $price ]] || need price-per-chip-hour "$price" "[0-9]+(\.[0-9]+)?"
  [[ $column == 3 || $accelerator != tpu7x-* ]] ||
    refuse "--accelerator=$accelerator: the Cloud TPU API has no TPU7x: use launch/mig.sh, or launch/gke.sh on GKE"
  hosts=$(hosts_of accelerator "$column" "$accelerator" "$1")
  check_capacity "$column" "${accelerator%-*}" "$2"
  read -r _ _ _ _ cores _ < <(rows_of "$column" "${accelerator%-*}")
  size=${accelerator##*-}
  [[ $size == *x* ]] || size=$((size / cores))
  chips=$(($1 * ${size//x/*}))
  [[ -z $disk ]] || ((hosts == 1)) || refuse "--disk=$disk: only one host may write to a disk, and $accelerator makes" \
    "$hosts hosts: leave it out, and keep corpus and work directory in a bucket"
  check_train "${train[@]}"
  [[ -z $logs ]] || need logs "$logs" "$BUCKET(/.*)?"
  [[ -z $staging ]] || need staging "$staging" "$BUCKET(/.*)?"
  [[ -z $env ]] || need env "$env" '[A-Za-z_][A-Za-z_0-9]*(,[A-Za-z_][A-Za-z_0-9]*)*'
  [[ -z $env || -z $boot ]] || refuse "--env=$env: with --boot it would be in the metadata of the machine, which is no" \
    "place for a secret: leave --boot out, or read it on the host from Secret Manager"
  give_up=${give_up:-$([[ -n $recreate ]] && echo never || echo 30m)}
  need give-up-after "$give_up" "never|(0|$NUMBER)[smhd]"
  give_up=$(sed 's/never//; s/s$//; s/m$/*60/; s/h$/*3600/; s/d$/*86400/' <<<"$give_up")
  [[ -n $runtime ]] || runtime=$(runtime_of "$accelerator")
  stage
  # The command of every host.
  host=(--repo="$repo" --commit="$commit")
  [[ -z $disk ]] || host+=(--device="$device" --mount="$mount")
  host+=(--job="${project:+$project/}$zone/$name")
  [[ -z $logs ]] || host+=(--logs="${logs%/}/$name")
  [[ -z $env ]] || host+=(--env-file=xlnet_env)
  # Several hosts start together: this script decides for all of them; with --boot each host retries until all are back.
  ((hosts == 1)) || [[ -n $boot ]] || host+=(--once)
  # With --boot this script does not wait: every host deletes all hosts a minute after its own end; the first one succeeds.
  [[ -z $boot || -z $autodelete ]] || host+=(--at-end="$([[ $autodelete == any ]] || echo "((\$1 == 0)) || exit 0; ")sleep 60; $(DRY_RUN=1 remove | paste -sd';')")
  host+=(-- "${train[@]}")
  creation_flags
  if [[ -n $boot ]]; then
    # The metadata server passes no arguments to a startup script, so the script sets its own arguments.
    if [[ -z $DRY_RUN ]]; then
      { printf '#!/usr/bin/env bash\n(($# > 0)) || set -- --boot %s\n' "$(quoted "${host[@]}")"; cat "$HERE/startup.sh"; } \
        >"$stage/xlnet_boot.sh"
    fi
    creation+=(--metadata-from-file="startup-script=$stage/xlnet_boot.sh")
  fi
}

# Prepares the files for the hosts in a temporary folder: startup.sh; with --repo=DIR the commit as a git bundle, which git
# reads like a repository; with --env the variables, in a file for the owner alone.
stage() {
  local word
  stage=${TMPDIR:-/tmp}/xlnet_launch
  if [[ -z $DRY_RUN ]]; then
    stage=$(mktemp -d "$stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT
    cp "$HERE/startup.sh" "$stage/xlnet_startup.sh"
  fi
  files=("$stage/xlnet_startup.sh")
  if [[ -d $repo ]]; then
    git -C "$repo" merge-base --is-ancestor "$commit" HEAD 2>/dev/null ||
      refuse "--commit=$commit is not in the history of HEAD in --repo=$repo: check it out there first"
    [[ -z $boot || -n $staging ]] || refuse "--repo=$repo with --boot: give --staging=gs://BUCKET/DIR, from where the hosts read it"
    run git -C "$repo" bundle create --quiet "$stage/xlnet_jax.bundle" HEAD
    repo=xlnet_jax.bundle
    if [[ -n $boot ]]; then
      repo=${staging%/}/xlnet_jax-$commit.bundle
      run gcloud storage cp --quiet "$stage/xlnet_jax.bundle" "$repo"
    fi
    files+=("$stage/xlnet_jax.bundle")
  fi
  [[ -n $env ]] || return 0
  files+=("$stage/xlnet_env")
  for word in ${env//,/ }; do
    [[ -v $word ]] || refuse "--env=$env: the variable $word is not set here"
    [[ -n $DRY_RUN ]] || (umask 077 && printf 'export %s=%q\n' "$word" "${!word}" >>"$stage/xlnet_env")
  done
}

# Failures of gcloud that a retry does not change: rights, sign-in, a wrong request, a quota of zero. Everything else is
# retried: a stock-out, UNAVAILABLE, a quota that others use up, a broken connection.
PERMANENT='PERMISSION_DENIED|UNAUTHENTICATED|INVALID_ARGUMENT|UNIMPLEMENTED|"code": (3|7|12|16),|Limit: 0(\.0)? '
PERMANENT+='|invalid_grant|Reauthentication|active account|SSH Key is not present'
# The same failures in the words of Compute Engine.
PERMANENT+="|Required '[^']*' permission|Invalid value for field|PERMISSIONS_ERROR"

# Runs gcloud and keeps its output, or its error as one line, in `answer`. A permanent failure ends the script.
attempt() { # GCLOUD...
  local code=0
  if [[ -n $DRY_RUN ]]; then
    quoted "$@"
    return
  fi
  answer=$("$@" 2>&1) || code=$?
  ((code != 0)) || return 0
  answer=${answer//$'\n'/ }
  answer="gcloud: ${answer#*ERROR: }"
  ((code != 2)) || refuse "$answer"
  ((code != 127)) || fail "gcloud is not installed, or not on PATH"
  if [[ $answer =~ $PERMANENT ]] || { [[ "$*" == *" create "* ]] && missing; }; then
    fail "$answer"
  fi
  return 1
}

# Whether the last answer says that the resource does not exist.
missing() {
  [[ $answer == *NOT_FOUND* || $answer == *" was not found"* ]]
}

# The account at the end: seconds by state; all states except `waiting` cost money.
declare -A spent=([waiting]=0 [set-up]=0 [training]=0 [restarting]=0)
now=waiting since=0 preemptions=0 chips=0
enter() { # STATE
  spent[$now]=$((spent[$now] + SECONDS - since))
  now=$1 since=$SECONDS
}

account() {
  local held
  enter "$now"
  held=$((spent[set-up] + spent[training] + spent[restarting]))
  note "time: waiting ${spent[waiting]} s, set-up ${spent[set-up]} s, training ${spent[training]} s, restarting" \
    "${spent[restarting]} s; $preemptions preemptions; $chips chips$(
      [[ -z $price ]] || awk -v chips="$chips" -v held="$held" -v price="$price" \
        'BEGIN { printf " for %d s at %s = %.2f", held, price, chips * held / 3600 * price }'
    )"
}

# Waits before a retry: --poll seconds, doubled with every failure in a row, at most ten minutes. A random part, up to half,
# is cut off, so that many launches do not retry at once.
failures=0 refused=0 failing_since=0
back_off() { # REASON
  local pause=$((poll << (failures < 5 ? failures : 5)))
  ((failures > 0)) || failing_since=$SECONDS
  failures=$((failures + 1))
  [[ -z $give_up ]] || ((SECONDS - failing_since < give_up)) || finish 1 "gave up after $failures failures: $1"
  pause=$((pause > 600 ? 600 : pause))
  pause=$((pause - RANDOM % (pause / 2 + 1)))
  note "$1; next try in $pause s"
  wait_for sleep "$pause"
}

# Asks until there is an answer; sets `answer` to `absent` if the resource does not exist. An answer ends the row of
# failures of the question: days in the queue can pass between two questions.
ask() { # GCLOUD...
  local before=$failures since=$failing_since
  until attempt "$@" || missing; do
    back_off "$answer"
  done
  failures=$before failing_since=$since
  if missing; then answer=absent; fi
}

# Deletes a resource that may be gone already.
drop() { # GCLOUD...
  until attempt "$@" || missing; do
    back_off "$answer"
  done
}

# Ends the script when the time of flex-start is over: an automatic new request could repeat for ever.
time_is_over() {
  remove
  finish 1 "$name is $state and was deleted: its flex-start time of $max_run is over; the same command asks for it again"
}

# Ends the script. With --autodelete it deletes the machines before, with as many tries as needed.
finish() { # CODE MESSAGE
  account
  if [[ $autodelete == any || ($autodelete == success && $1 == 0) ]]; then
    note "$2; deleting $name"
    give_up=""
    remove
  else
    note "$2; if $name still exists, --delete deletes it"
  fi
  exit "$1"
}

# The machines are ready and do not answer: retry, and after five failures in a row replace them if --recreate is given.
unreachable() { # REASON
  refused=$((refused + 1))
  if [[ -n $recreate ]] && ((refused >= 5)); then
    note "$name did not answer $refused times: creating it again"
    remove
  fi
  back_off "$1"
}

# Sets `start`, the command that runs startup.sh over `ssh`. Each host writes its exit code to a file, because the code of
# gcloud comes from one host, from ssh or from gcloud itself.
start_command() {
  # shellcheck disable=SC2016 # the host's $?
  start=("${ssh[@]}" --ssh-flag="-o ServerAliveInterval=30" --command="rm -f xlnet_code; bash xlnet_startup.sh $(
    quoted "${host[@]}"
  )"'; code=$?; echo $code >xlnet_code; exit $code')
}

# For --dry-run: prints the commands that follow when the machines are ready.
show_training() {
  host_commands "$name-HOST"
  [[ -z $boot ]] || return 0
  quoted "${scp[@]}"
  quoted "${start[@]}"
  [[ -z $autodelete ]] || remove
}

# Whether all hosts continue after this exit code of one host: done, interrupted, killed. Hosts that lose a peer end with
# 42.
goes_on() { # CODE
  (($1 == 0 || $1 == 42 || ($1 > 128 && $1 != 130 && $1 != 255)))
}

# Sets `code` to one exit code for all hosts: the first code that ends the training; else 0 if all hosts are done; 42 if some
# are not; 255 if no host reports a code, because the connection broke or nothing was started. Sets `killed` to the code of
# a host whose trainer a signal ended.
code_of_hosts() {
  local codes=() one
  mapfile -t codes < <(on_hosts ssh --command="sed s/^/xlnet_code=/ xlnet_code" 2>/dev/null | sed -n 's/.*xlnet_code=\([0-9]\+\).*/\1/p')
  code=255
  if ((hosts == 1 && ${#codes[@]})); then
    code=${codes[0]}
  elif ((${#codes[@]})); then
    [[ ${#codes[@]} == "$hosts" ]] || note "$((hosts - ${#codes[@]})) of $hosts hosts did not report their exit code"
    for one in "${codes[@]}"; do
      goes_on "$one" || { code=$one; return; }
      ((one <= 128)) || killed=$one
    done
    code=42
    [[ ${#codes[@]} != "$hosts" || "${codes[*]}" == *[1-9]* ]] || code=0
  fi
}

# Trains until the end and exits with the code of the training. After 42, interrupted and saved, it trains again; failures
# in between are retried.
train_until_the_end() {
  local began code killed deaths=0
  say_at_signals "$name stays, may still run, and costs money; run the same command again to follow it, or --delete to delete it"
  while true; do
    ready
    [[ -z $boot ]] || exit 0
    enter set-up
    if ! attempt on_hosts scp; then
      unreachable "$answer"
      continue
    fi
    began=$SECONDS code=0 killed=""
    enter training
    wait_for on_hosts start || code=$?
    enter restarting
    if ((code != 0)); then
      look
      # A preempted machine cannot report a code.
      if [[ $state == "$ready_state" ]]; then code_of_hosts; else code=254; fi
    fi
    ((code >= 254 && SECONDS - began < 300)) || failures=0 refused=0
    # As in startup.sh: it gives up after the fifth death in a row, each within an hour of the start.
    if [[ -n $killed ]] && ((SECONDS - began < 3600)); then deaths=$((deaths + 1)); else deaths=0; fi
    ((deaths < 5)) || code=$killed
    case $code in
      0) finish 0 "done" ;;
      42) note "interrupted and saved: rerunning the same command" && wait_for sleep "$poll" ;;
      254) note "$name is $state" && preemptions=$((preemptions + 1)) ;;
      255) unreachable "no connection to $name" ;;
      *) finish "$code" "the training ended with $code" ;;
    esac
  done
}

# The functions from here on are for `gcloud compute tpus`.

# Flags that both create commands accept.
creation_flags() {
  [[ $capacity != spot ]] || creation+=(--spot)
  [[ -z $disk ]] || creation+=(--data-disk="mode=read-write,source=$disk")
  [[ -z $service_account ]] || creation+=(--service-account="$service_account" --scopes=cloud-platform)
  [[ -z $network ]] || creation+=(--network="$network")
  [[ -z $subnetwork ]] || creation+=(--subnetwork="$subnetwork")
  [[ -z $internal_ips ]] || creation+=(--internal-ips)
}

# Sets `state` to a field of the resource, or to `absent` if it does not exist.
state_of() { # FIELD
  ask gcloud compute tpus "$group" describe "$name" "${place[@]}" --format="value($1)"
  state=${answer##*$'\n'}
}

remove() {
  refused=0
  drop gcloud compute tpus "$group" delete "$name" "${place[@]}" "${force[@]}" --quiet
}

# Sets the commands that copy the files to all hosts and run startup.sh on them.
host_commands() {
  # In gcloud 528 only the alpha command for single TPU VMs has IAP.
  local tpus=(gcloud compute tpus "$group") where=("${place[@]}" "${all_hosts[@]}" --quiet)
  [[ -z $iap ]] || where+=(--tunnel-through-iap)
  [[ -z $iap || $group != tpu-vm ]] || tpus=(gcloud alpha compute tpus "$group")
  scp=("${tpus[@]}" scp "${files[@]}" "$name:" "${where[@]}")
  ssh=("${tpus[@]}" ssh "$name" "${where[@]}")
  start_command
}

# Runs a command of host_commands; gcloud runs it on all hosts.
on_hosts() { # scp|ssh|start [WORD...]
  host_commands
  local -n words=$1
  "${words[@]}" "${@:2}"
}
