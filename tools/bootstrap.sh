#!/usr/bin/env bash
# Prepares .venv, with byteps installed in it as an editable package:
#   tools/bootstrap.sh demo      what `make demo` needs
#   tools/bootstrap.sh test      that, and the test tools
#   tools/bootstrap.sh test-all  that, the linters, every framework, clang, qemu
#   tools/bootstrap.sh bench     what `make demo` needs, and the peers that `make bench` compares with
# Debian packages are installed when run as root; otherwise the missing ones are named and nothing is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
goal=${1:?demo, test, test-all or bench}
case $goal in
  demo | test | test-all | bench) ;;
  *) echo "tools/bootstrap.sh: unknown goal '$goal': expected demo, test, test-all or bench" >&2; exit 2 ;;
esac

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

debian_packages() {
  command -v g++ >/dev/null || echo g++
  echo libssl-dev
  # Only a Python of Debian's own comes in pieces.
  if [ "$(python3 -c 'import sys; print(sys.base_prefix)')" = /usr ]; then
    echo python3-dev
    echo python3-venv
  fi
  if [ "$goal" = test ]; then
    echo libgtest-dev
  fi
  if [ "$goal" = test-all ]; then
    printf '%s\n' libgtest-dev libbenchmark-dev clang libclang-rt-dev openmpi-bin iproute2
    printf '%s\n' qemu-system-x86 rdma-core ibverbs-providers libibverbs-dev ibverbs-utils perftest python3-pyverbs
  fi
  if [ "$goal" = bench ]; then
    printf '%s\n' libgtest-dev libbenchmark-dev openmpi-bin libopenmpi-dev iproute2 iperf3 strace
  fi
}

install_debian_packages() {
  command -v dpkg-query >/dev/null || {
    echo "Not a Debian system: please see to the counterparts of: $(debian_packages | xargs)"
    return
  }
  local missing=()
  for package in $(debian_packages); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || fail "Debian packages are missing. Install them and run make again:" \
    "  sudo apt-get install ${missing[*]}"
  echo "Installing Debian packages: ${missing[*]}"
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

command -v python3 >/dev/null || fail "python3 is missing: byteps needs Python 3.10 or newer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "python3 is $(python3 -V): byteps needs Python 3.10 or newer"
install_debian_packages
python3 -c 'import ensurepip' 2>/dev/null || fail \
  "$(command -v python3) has no ensurepip, so it cannot make a virtual environment." \
  "Debian: apt-get install python3-venv. Otherwise put another python3 first on PATH."

[ -x .venv/bin/pip ] || python3 -m venv .venv
# Python compiles what it imports; compiling all of PyTorch takes longer than unpacking it.
pip_install() { .venv/bin/pip install -qq --disable-pip-version-check --no-compile -c tools/constraints.txt "$@"; }
echo "Installing Python packages into .venv (PyTorch is large)"
pip_install torch  # first, in the pinned release, so that nothing below pulls another one
pip_install setuptools pybind11 cmake ninja  # pyproject.toml's build-system.requires
extras=torch,examples
[ "$goal" != test ] || extras+=,test
[ "$goal" != test-all ] || extras+=,tensorflow,test,dev
[ "$goal" != bench ] || extras+=,tensorflow,bench
echo "Building byteps (CMake, build/release)"
[ "$goal" != test-all ] || export CMAKE_ARGS="-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"
PATH="$PWD/.venv/bin:$PATH" pip_install --no-build-isolation --editable ".[$extras]"

if [ "$goal" = test-all ]; then
  echo "Installing the oldest TensorFlow that the tests know into .venv/oldest-tensorflow"
  [ -x .venv/oldest-tensorflow/bin/pip ] || python3 -m venv .venv/oldest-tensorflow
  .venv/oldest-tensorflow/bin/pip install -qq --disable-pip-version-check -r tools/oldest_tensorflow.txt
fi

if [ "$goal" = test-all ] || [ "$goal" = bench ]; then
  echo "Installing MXNet into .venv/mxnet"
  [ -x .venv/mxnet/bin/pip ] || python3 -m venv .venv/mxnet
  .venv/mxnet/bin/pip install -qq --disable-pip-version-check --no-deps -r tools/mxnet.txt
fi
if [ "$goal" = test-all ] && ! [ -d .venv/mxnet/numpy-1.23 ]; then  # another numpy, to be put first on PYTHONPATH
  .venv/mxnet/bin/pip install -qq --disable-pip-version-check --no-deps --target .venv/mxnet/numpy-1.23 \
    'numpy==1.23.5; python_version < "3.12"'
fi
