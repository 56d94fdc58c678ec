#!/bin/sh
# Process 1 of the guest, run by busybox: finds the host's files, makes the devices, runs the command, and tells the host
# how that went. In /job, from command.py: shares, topology.sh, command.sh.
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /host
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin

port() {
  for device in /sys/class/virtio-ports/*; do
    if [ "$(cat "$device/name")" = "$1" ]; then
      echo "/dev/${device##*/}"
    fi
  done
}

fail() {
  echo "failed: $*" >&3
  reboot -f
}

exec 3>/dev/kmsg # until there is a port
while read -r module; do
  insmod "/modules/$module.ko" || fail "insmod $module"
done </modules/order
exec 3>"$(port control)"

# The tree of the host is read-only, and what is under it is as old as the first look at it.
transport=trans=virtio,version=9p2000.L,msize=524288,access=client
mount -t 9p -o "ro,cache=loose,$transport" host /host || fail "mount the host's files"
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount --bind /dev /host/dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
  ln -s "/proc/self/${link##*:}" "/dev/${link%%:*}"
done
mount -t tmpfs -o mode=755 tmpfs /host/run
mkdir -p /host/run/lock /host/run/job
mount --bind /job /host/run/job
mount -t tmpfs -o mode=1777 tmpfs /host/var/tmp

# Programs write to /tmp, and find there what the host has: a layer that is gone with the guest.
mkdir /layer
mount -t tmpfs tmpfs /layer
mkdir -m 1777 /layer/upper /layer/scratch
mount -t overlay -o lowerdir=/host/tmp,upperdir=/layer/upper,workdir=/layer/scratch tmp /host/tmp || fail "mount /tmp"

number=0
while read -r folder; do
  mkdir -p "/host$folder" || fail "no place for $folder"
  mount -t 9p -o "rw,cache=mmap,$transport" "share$number" "/host$folder" || fail "mount $folder"
  number=$((number + 1))
done </job/shares

hostname localhost # resolves without a name server
ulimit -l unlimited
ulimit -n 65536

# A program of the host's. Through env, as busybox would run a program of its own that has the same name.
host() {
  chroot /host /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
host ip link set lo up || fail "no network"
. /job/topology.sh

echo ready >&3
setsid chroot /host /bin/sh /run/job/command.sh </dev/null >"$(port stdout)" 2>"$(port stderr)" 3>&-
status=$?
sync
echo "exit $status" >&3
exec 3>&-
reboot -f
