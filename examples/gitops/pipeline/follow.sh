#!/usr/bin/env bash
# Follows a rollout after its pull request was merged, and takes the commit back if the judge did.
#
#   follow.sh MODEL COMMIT [SECONDS]
#
# Exit status: that of `tidewheel watch`: 0 promoted, 1 rolled back, 3 still going on after SECONDS, 4 waits for a person.
# After a rollback traffic is safe already; Git still names the rejected version, and the rule says so. Reverting the
# commit makes Git say what is so, and the rule Ready again.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
model=$1 commit=$2 seconds=${3:-10800}

status=0
tidewheel watch "$model" --timeout "$seconds" || status=$?
if [ "$status" -eq 1 ]; then
  tidewheel why "$model" || true
  git switch --quiet --create "revert-$model-${commit:0:12}"
  git revert --no-edit "$commit"
  git push --quiet --set-upstream origin "revert-$model-${commit:0:12}"
  ${OPEN_PULL_REQUEST:-gh pr create --fill}
fi
exit "$status"
