set -e
ldconfig
env FAKENVML_STATE=/run/fakenvml.state fakenvml new --gpus H100-80:8
mount -o remount,rw /sys
mkdir -p /run/driver/nvidia /sys/module/nvidia /sys/module/nvidia_uvm
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@node)" >/run/driver/nvidia/version
echo 580.95.05 >/sys/module/nvidia/version; echo 2 >/sys/module/nvidia/refcnt; echo live >/sys/module/nvidia/initstate
cp /sys/module/nvidia/* /sys/module/nvidia_uvm/
ln -sf null /dev/nvidia-uvm
mount --bind /run/driver /proc/driver
