#!/bin/sh
set -e
mkdir -p /run/driver/nvidia-caps /dev/nvidia-caps
mknod /dev/nvidia0 c 195 0; mknod /dev/nvidia1 c 195 1; mknod /dev/nvidiactl c 195 255
printf 'config 1\nmonitor 2\n' >/run/driver/nvidia-caps/mig-minors
minor=3
for gpu in 0 1; do for gi in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do
  for access in access ci0/access ci1/access ci2/access ci3/access ci4/access ci5/access ci6/access ci7/access; do
    echo "gpu$gpu/gi$gi/$access $minor" >>/run/driver/nvidia-caps/mig-minors
    mknod /dev/nvidia-caps/nvidia-cap$minor c 235 $minor
    minor=$((minor+1))
  done
done; done
mount --bind /run/driver /proc/driver
