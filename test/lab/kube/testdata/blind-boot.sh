set -e
umount /proc/driver 2>/dev/null || :
mount -o remount,rw /sys
rm -rf /run/driver /sys/module/nvidia /sys/module/nvidia_uvm
rm -f /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl
# The fake library puts its GPUs on other buses than the lab.
cd /usr/lib/gpuadm-lab/pci
for bus in 18:17 28:1f; do
  from=0000:${bus%:*}:00.0 to=0000:${bus#*:}:00.0
  [ ! -e sys/$from ] || { mv sys/$from sys/$to; sed -i s/$from/$to/ sys/$to/uevent; }
done
for gpu in $(grep -l 0x10de /sys/bus/pci/devices/*/vendor); do
  dir=/usr/lib/gpuadm-lab/pci/sys/$(basename $(dirname $gpu)); sed -i /^DRIVER=/d $dir/uevent
done
[ -n "$1" ] || exit 0
mkdir -p /run/driver/nvidia /sys/module/nvidia /sys/module/nvidia_uvm
echo "NVRM version: NVIDIA UNIX $1  580.95.05  Release Build  (root@node)
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)" >/run/driver/nvidia/version
echo 580.95.05 >/sys/module/nvidia/version; echo 2 >/sys/module/nvidia/refcnt; echo live >/sys/module/nvidia/initstate
cp /sys/module/nvidia/* /sys/module/nvidia_uvm/
minor=0
for gpu in $(grep -l 0x10de /sys/bus/pci/devices/*/vendor); do
  name=$(basename $(dirname $gpu)); dir=/usr/lib/gpuadm-lab/pci/sys/$name
  echo DRIVER=nvidia >>$dir/uevent
  mkdir -p /run/driver/nvidia/gpus/$name; echo "Bus Location: 	 $name" >/run/driver/nvidia/gpus/$name/information
  mknod -m 666 /dev/nvidia$minor c 195 $minor; minor=$((minor+1))
done
mknod -m 666 /dev/nvidiactl c 195 255
mount --bind /run/driver /proc/driver
