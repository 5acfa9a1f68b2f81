#!/bin/sh
# Prints the folder of GoogleTest's sources: those installed on this machine, else Debian's package `googletest`,
# downloaded and unpacked under FOLDER. Changes nothing outside FOLDER and needs no root.
set -eu
folder=${1:?usage: get_googletest.sh FOLDER}

if [ -f /usr/src/googletest/googletest/CMakeLists.txt ]; then
  echo /usr/src/googletest
  exit 0
fi

sources=$folder/usr/src/googletest
if [ ! -f "$sources/googletest/CMakeLists.txt" ]; then
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "GoogleTest's sources are neither in /usr/src/googletest nor to be had with apt-get." >&2
    echo "Install your system's GoogleTest package (Fedora: gtest-devel, Arch: gtest, macOS: googletest)." >&2
    exit 1
  fi
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
  folder=$(cd "$folder" && pwd)
  (
    cd "$folder"
    # A list of packages of our own: the system's may be empty, and only root may renew it.
    set -- -q -o Dir::State::Lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User=
    # A mirror that lags behind has lists that have expired. Their signatures are checked all the same.
    set -- "$@" -o Acquire::Check-Valid-Until=false
    apt-get "$@" update >&2
    apt-get "$@" download googletest >&2
    dpkg-deb -x googletest_*.deb .
    rm -rf apt googletest_*.deb
  )
fi
cd "$sources" && pwd
