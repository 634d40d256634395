#!/usr/bin/env bash
# launch/image.sh --repository=REGION-docker.pkg.dev/PROJECT/REPOSITORY [--commit=HEAD]
#
# Builds the image of a commit for launch/gke.sh and Cluster Toolkit, pushes it to a repository of Artifact Registry, and
# prints its name, tagged with the commit. The image has the files of the commit only: no uncommitted changes, and no
# files that git ignores. Requires git, docker with buildx, and gcloud with roles/artifactregistry.writer.
#
#   --repository=ADDRESS        as `gcloud artifacts repositories create` made it
#   --commit=COMMIT             of this checkout (default: HEAD)
#   --dry-run                   print the commands, one per line, and do not run them

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

repository="" commit=HEAD ROOT=$(dirname "$HERE")
while (($# > 0)); do
  case $1 in
    --help) usage ;;
    --dry-run) DRY_RUN=1 ;;
    --repository=*) repository=${1#*=} ;;
    --commit=*) commit=${1#*=} ;;
    *) refuse "unknown option $1; see --help" ;;
  esac
  shift
done
need repository "$repository" "[-a-z0-9]+-docker\.pkg\.dev/$WORD/$WORD"
sha=$(git -C "$ROOT" rev-parse --verify --quiet "$commit^{commit}") || refuse "--commit=$commit: no such commit in $ROOT"
image=$repository/xlnet_jax:$sha

say_at_signals "the build ends, unless docker builds elsewhere; layers that are pushed stay in $repository; the same command goes on"
run gcloud auth configure-docker "${repository%%/*}" --quiet
# TPU machines are amd64, whatever this machine is. The archive on standard input is the context of the build.
archive=(git -C "$ROOT" archive "$sha")
build=(docker buildx build --platform=linux/amd64 --file=launch/Dockerfile --tag="$image" --push -)
push() {
  "${archive[@]}" | "${build[@]}"
}
if [[ -n $DRY_RUN ]]; then
  echo "$(quoted "${archive[@]}") | $(quoted "${build[@]}")"
else
  wait_for push
fi
echo "$image"
