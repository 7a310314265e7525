#!/usr/bin/env bash
# Rebuild the page's bundle from frontend/ and compare it, byte for byte, with the committed one.
# Usage: scripts/verify_bundle.sh [--no-install]. Exit 1 and the list of differences if they differ.
set -euo pipefail
cd "$(dirname "$0")/../frontend"

committed=../controlplane/api/static/ui
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

[[ "${1:-}" == "--no-install" ]] || npm ci --ignore-scripts --no-audit --no-fund
npx --no-install vite build --outDir "$fresh" --emptyOutDir --logLevel warn

if ! diff -rq "$committed" "$fresh"; then
  echo "the committed bundle differs from its sources: run 'npm run build' in frontend/ and commit the result" >&2
  exit 1
fi
echo "bundle verified"
