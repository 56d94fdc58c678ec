#!/usr/bin/env bash
# Puts the Fashion-MNIST images of Debian's package dataset-fashion-mnist into .data/fashion-mnist (31 MB; no root
# needed) and prints that folder, which holds the four IDX files. Fails where apt is not to be had.
set -euo pipefail
cd "$(dirname "$0")/.."
package=dataset-fashion-mnist
images=.data/fashion-mnist

if [ ! -d $images ]; then
  mkdir -p .data
  scratch=$(mktemp -d .data/download.XXXXXX)
  trap 'rm -rf "$scratch"' EXIT
  download() { (cd "$scratch" && apt-get download -q $package >&2); }
  # A new machine has no package lists yet, and only root can fetch them.
  download || { [ "$(id -u)" = 0 ] && apt-get update -q >&2 && download; }
  dpkg -x "$scratch"/$package*.deb "$scratch/tree"
  # One rename, so that ranks that do the same at once see all the files or none.
  mv -T "$scratch/tree/usr/share/datasets/fashion-mnist" $images || [ -d $images ]
fi
echo "$PWD/$images"
