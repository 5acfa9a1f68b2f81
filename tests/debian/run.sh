#!/bin/sh
# Runs a command, by default `make demo && make test`, in a clone of HEAD on a Debian that has only Python, g++ and make.
# The clone belongs to a user who is not root, in a folder made by debootstrap. Needs root, debootstrap and git.
# The clone gets the settings of pip and of proxies in the environment. Its pip trusts the certificate authorities that
# this machine trusts.
# With DEBIAN_FILES=FOLDER, the command runs in a copy of that folder in place of a clone; DEBIAN_PACKAGES are the
# packages of a new root.
set -eu
release=${1:?usage: tests/debian/run.sh stable|testing [COMMAND]}
command=${2:-make demo && make test}
sources=$(cd "$(dirname "$0")/../.." && pwd)
folder=${DEBIAN_FOLDER:-/var/tmp/perseus_like-debian}/$release
# README names Debian's packages in one line.
packages=${DEBIAN_PACKAGES:-$(sed -n 's/.*`apt install \(python3[^`]*\)`.*/\1/p' "$sources/README.md")}

if [ ! -e "$folder/etc/complete" ]; then
  debootstrap --variant=minbase --include="$(echo $packages | tr ' ' ',')" \
    "$release" "$folder" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  chroot "$folder" useradd --create-home --shell /bin/sh user
  touch "$folder/etc/complete"
fi

clone=$folder/home/user/perseus_like
if [ -n "${DEBIAN_FILES:-}" ]; then
  rm -rf "$clone" && cp -r "$DEBIAN_FILES" "$clone" && chmod 755 "$clone"
else
  git="git -c safe.directory=*"
  [ -d "$clone/.git" ] || $git clone --quiet --no-checkout "$sources" "$clone"
  $git -C "$clone" fetch --quiet "$sources" HEAD
  $git -C "$clone" update-index -q --refresh || true # files that only changed their owner are not written again
  $git -C "$clone" reset --quiet --hard FETCH_HEAD
fi
chroot "$folder" chown -R user:user /home/user

set -- PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user USER=user LANG=C.UTF-8
for name in $(env | sed -n 's/^\(PIP_[A-Z_]*\|[a-zA-Z]*_proxy\|[A-Z]*_PROXY\)=.*/\1/p'); do
  set -- "$@" "$name=$(printenv "$name")"
done
authorities=/etc/ssl/certs/ca-certificates.crt
if [ -e $authorities ]; then
  cp $authorities "$folder/etc/authorities.crt"
  set -- "$@" PIP_CERT=/etc/authorities.crt
fi

# The command runs in a mount and PID namespace of its own: at the end, the kernel ends all processes and unmounts
# everything. The time limit sends SIGKILL, because `unshare` and the first process of the namespace ignore SIGTERM.
exec timeout --foreground --signal=KILL "${DEBIAN_SECONDS:-14400}" \
  unshare --mount --pid --fork --kill-child /usr/bin/env -i PATH="$PATH" folder="$folder" command="$command" /bin/sh -euc '
  mount -t proc proc "$folder/proc"
  mount -t sysfs -o ro sysfs "$folder/sys"
  mount -t tmpfs -o mode=755 tmpfs "$folder/dev"
  for device in null zero full random urandom tty; do
    touch "$folder/dev/$device" && mount --bind "/dev/$device" "$folder/dev/$device"
  done
  mkdir -m 1777 "$folder/dev/shm" && mount -t tmpfs tmpfs "$folder/dev/shm"
  mkdir "$folder/dev/pts" && mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$folder/dev/pts"
  ln -s pts/ptmx "$folder/dev/ptmx" && ln -s /proc/self/fd "$folder/dev/fd"
  for file in /etc/hosts /etc/resolv.conf; do
    touch "$folder$file" && mount --bind "$file" "$folder$file"
  done
  exec chroot --userspec=user:user "$folder" env -i "$@" /bin/sh -c "cd ~/perseus_like && $command"
' run.sh "$@"
