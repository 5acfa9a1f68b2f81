#!/bin/sh
# `make matrix` for one Python that Debian testing has and this machine lacks. Needs what tests/debian/run.sh needs, and
# dist/ of `make wheels`. The other arguments are for run.py.
set -eu
python=${1:?usage: tests/matrix/in_debian.sh PYTHON [ARGUMENTS FOR run.py]}
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${DEBIAN_FOLDER:-/var/tmp/perseus_like-debian}/testing
[ -e "$folder/etc/complete" ] || "$root/tests/debian/run.sh" testing true
rm -rf "$folder/srv/dist"
cp -r "$root/dist" "$root/tests/matrix/results.json" "$folder/srv/"
chmod -R a+rwX "$folder/srv"
# Of this Python only: other cells may have run meanwhile.
trap 'python3 "$root/tests/matrix/run.py" --python "$python" --add "$folder/srv/results.json"' EXIT
"$root/tests/debian/run.sh" testing \
  "python3 tests/matrix/run.py --python $python --wheels /srv/dist --results /srv/results.json $*"
