#!/bin/sh
# A driver's installer as NVIDIA's is one: a shell archive with the real one's options and files. KIND and VERSION are put in.
set -e
version=@VERSION@ kind=@KIND@
log=/var/log/nvidia-installer.log type=proprietary uninstall=
echo "nvidia-installer log file '$log'" >$log
for option; do
	case $option in
	--silent | --accept-license | --no-x-check | --dkms | --no-nouveau-check | --allow-installation-with-running-driver) ;;
	--no-rebuild-initramfs | --skip-module-load) ;;
	--concurrency-level=*) jobs=${option#*=} ;;
	--kernel-name=*) kernel=${option#*=} ;;
	--kernel-module-type=*) type=${option#*=} ;;
	--uninstall) uninstall=yes ;;
	*)
		echo "ERROR: Invalid option '$option'" | tee -a $log >&2
		exit 1
		;;
	esac
done
if [ "$uninstall" ]; then
	exec /usr/bin/nvidia-uninstall --silent
fi
if [ -e /usr/bin/nvidia-uninstall ]; then
	/usr/bin/nvidia-uninstall --silent
fi
lib=/usr/lib/x86_64-linux-gnu src=/usr/src/nvidia-$version
license=NVIDIA
if [ "$type" = open ]; then license="Dual MIT/GPL"; fi
mkdir -m 0700 /var/lib/nvidia
printf '1.0-%s (%s)\nNVIDIA Accelerated Graphics Driver\n' "$(echo $version | tr -d .)" $version >/var/lib/nvidia/log
did() { printf '%s: %s\n%s\n' "$1" "$2" 0 >>/var/lib/nvidia/log; }
mkdir -p $src/nvidia
cat >$src/nvidia/nv.c <<SOURCE
#include <linux/module.h>
MODULE_LICENSE("$license");
MODULE_VERSION("$version");
static int __init nv_init(void) { return -ENODEV; }
module_init(nv_init);
SOURCE
if [ $kind = broken ]; then echo 'int x = no_such_name;' >>$src/nvidia/nv.c; fi
cat >$src/Makefile <<'MAKE'
obj-m := nvidia.o
nvidia-y := nvidia/nv.o
MAKE
cat >$src/dkms.conf <<CONF
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="$version"
AUTOINSTALL="yes"
MAKE[0]="make -C \${kernel_source_dir} M=\${dkms_tree}/nvidia/$version/build modules"
CLEAN="true"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/kernel/drivers/video"
CONF
for file in $src/nvidia/nv.c $src/Makefile $src/dkms.conf; do did 1 $file; done
for name in libnvidia-ml libcuda; do
	if [ -e /usr/local/lib/fakenvml/$name.so ]; then # an image that boots with GPUs
		cp /usr/local/lib/fakenvml/$name.so $lib/$name.so.$version
	else
		echo library >$lib/$name.so.$version
	fi
	did 1 $lib/$name.so.$version
	ln -s $name.so.$version $lib/$name.so.1
	did 0 $lib/$name.so.1
done
for name in nvidia-smi nvidia-persistenced; do
	printf '#!/bin/sh\ntest $0 = /usr/bin/nvidia-smi || sleep infinity &\n' >/usr/bin/$name
	chmod 0755 /usr/bin/$name
	did 1 /usr/bin/$name
done
if [ $kind = grid ]; then # of NVIDIA vGPU: the licence's daemon, its unit and the template of its file
	mkdir -p /etc/nvidia
	printf '# /etc/nvidia/gridd.conf.template - Configuration file for NVIDIA Grid Daemon\n#ServerAddress=\n# 0 => for unlicensed state\nFeatureType=0\n#EnableUI=TRUE\n' >/etc/nvidia/gridd.conf.template
	printf '#!/bin/sh\nsleep infinity &\n' >/usr/bin/nvidia-gridd
	chmod 0755 /usr/bin/nvidia-gridd
	printf '[Unit]\nDescription=NVIDIA Grid Daemon\n[Service]\nType=forking\nExecStart=/usr/bin/nvidia-gridd\n[Install]\nWantedBy=multi-user.target\n' >/usr/lib/systemd/system/nvidia-gridd.service
	for file in /etc/nvidia/gridd.conf.template /usr/bin/nvidia-gridd /usr/lib/systemd/system/nvidia-gridd.service; do did 1 $file; done
	systemctl daemon-reload
fi
cat >/usr/bin/nvidia-uninstall <<'UNINSTALL'
#!/bin/sh
[ -e /var/lib/nvidia/log ] || { echo "No driver backed up." >&2; exit 1; }
version=$(sed -n '1s/.*(\(.*\))/\1/p' /var/lib/nvidia/log)
dkms remove -m nvidia -v $version --all >/dev/null 2>&1
sed -n 's/^[01]: //p' /var/lib/nvidia/log | while read -r file; do rm -f "$file"; done
rmdir /usr/src/nvidia-$version/nvidia /usr/src/nvidia-$version
rm -r /var/lib/nvidia
UNINSTALL
chmod 0755 /usr/bin/nvidia-uninstall
did 1 /usr/bin/nvidia-uninstall
dkms add -m nvidia -v $version >>$log 2>&1
if ! dkms install -j $jobs -m nvidia -v $version -k $kernel >>$log 2>&1; then
	echo "ERROR: Unable to build the NVIDIA kernel module." >>$log
	echo "ERROR: Installation has failed.  Please see the file '$log' for details." | tee -a $log >&2
	exit 1
fi
