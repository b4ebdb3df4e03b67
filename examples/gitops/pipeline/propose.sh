#!/usr/bin/env bash
# Proposes to promote a version: a branch on which chat/traffic.yaml names it, pushed, and a pull request from it.
#
#   propose.sh MODEL NEW [OLD]      for example: propose.sh chat v2 v1
#
# Run it in a clone of the repository that Argo CD or Flux follows. Merging the pull request starts the rollout; the
# operator takes it from there, by the steps in rule.yaml. OLD stays named at 0 %: its file may go in a later commit.
# OPEN_PULL_REQUEST is the command that opens it (default: gh pr create --fill); it runs on the pushed branch.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
model=$1 new=$2 old=${3:-}
[ -e "$model/versions/$new.yaml" ] || { echo "$model/versions/$new.yaml does not exist: commit the version first" >&2; exit 1; }

git switch --quiet --create "promote-$model-$new"
{
  echo "# Written by pipeline/propose.sh; the split that is wanted. A change of it is a promotion."
  echo "apiVersion: tidewheel.dev/v1alpha1"
  echo "kind: RoutingRule"
  echo "metadata:"
  echo "  name: $model"
  echo "spec:"
  echo "  traffic:"
  [ -z "$old" ] || echo "    - {version: $old, percent: 0}"
  echo "    - {version: $new, percent: 100}"
} > "$model/traffic.yaml"
git add "$model/traffic.yaml"
git commit --quiet --message "Promote $model to $new"
git push --quiet --set-upstream origin "promote-$model-$new"
${OPEN_PULL_REQUEST:-gh pr create --fill}
