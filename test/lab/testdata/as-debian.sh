set -e
from=$1 r=/srv/debian; mkdir -p $r; cd /srv
deb() { # NAME VERSION DEPENDS; the files are in d already
	mkdir -p d/DEBIAN d/usr/share/lab; echo $2 >d/usr/share/lab/$1
	printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: lab <lab@example.invalid>\n%sDescription: a fake of Debian'"'"'s\n' "$1" "$2" "${3:+Depends: $3
}" >d/DEBIAN/control
	dpkg-deb --root-owner-group -Zgzip -z1 --build d $r >/dev/null; rm -rf d
}
scripts() { # MODULE VERSION
	mkdir -p d/DEBIAN
	printf '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n/usr/lib/dkms/common.postinst %s %s /usr/share/lab "" "$2"\n' $1 $2 >d/DEBIAN/postinst
	printf '#!/bin/sh\nset -e\nif [ -d /var/lib/dkms/%s/%s ]; then dkms remove -m %s -v %s --all; fi\n' $1 $2 $1 $2 >d/DEBIAN/prerm; chmod 755 d/DEBIAN/p*
}
dpkg-deb -x $from x
for v in 535.216.01 535.261.03; do
	for n in nvidia-open-kernel-support libcuda1 libnvidia-ml1 libnvidia-cfg1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 libnvidia-pkcs11-openssl3 \
		libnvidia-encode1 libnvcuvid1 nvidia-alternative nvidia-smi nvidia-driver-bin firmware-nvidia-gsp; do
		case $n in
		libnvidia-ml1) mkdir -p d/usr/lib/x86_64-linux-gnu; touch d/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.$v; ln -s libnvidia-ml.so.$v d/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 ;;
		libcuda1) mkdir -p d/usr/lib/x86_64-linux-gnu; touch d/usr/lib/x86_64-linux-gnu/libcuda.so.$v; ln -s libcuda.so.$v d/usr/lib/x86_64-linux-gnu/libcuda.so.1 ;;
		nvidia-smi) mkdir -p d/usr/bin; touch d/usr/bin/nvidia-smi ;;
		firmware-nvidia-gsp) mkdir -p d/usr/lib/firmware/nvidia/$v; touch d/usr/lib/firmware/nvidia/$v/gsp_ga10x.bin d/usr/lib/firmware/nvidia/$v/gsp_tu10x.bin ;;
		esac
		deb $n $v-1
	done
	mkdir -p d/usr/src; cp -r x/usr/src/nvidia-580.65.06 d/usr/src/nvidia-$v; sed -i s/580.65.06/$v/ d/usr/src/nvidia-$v/lab.h d/usr/src/nvidia-$v/dkms.conf
	scripts nvidia $v; deb nvidia-open-kernel-dkms $v-1 dkms
done
deb nvidia-modprobe 570.133.07-1
mkdir -p d/usr/lib/systemd/system; printf '[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >d/usr/lib/systemd/system/nvidia-persistenced.service
mkdir -p d/usr/bin; touch d/usr/bin/nvidia-persistenced
deb nvidia-persistenced 570.133.07-1
s=d/usr/src/nvidia-fs-2.13.5; mkdir -p $s; cp x/usr/src/nvidia-580.65.06/nvidia-uvm.c $s/nvidia-fs.c; echo 'MODULE_INFO(driver, LAB_DRIVER);' >>$s/nvidia-fs.c
printf '#define LAB_VERSION "2.13.5"\n#define LAB_LICENSE "GPL v2"\n' >$s/lab.h
printf '%s\n' 'obj-m := nvidia-fs.o' "ccflags-y := -DLAB_DRIVER='\"\$(shell modinfo -k \$(KERNELRELEASE) -F version nvidia)\"'" >$s/Makefile
printf '%s\n' 'PACKAGE_NAME="nvidia-fs"' 'PACKAGE_VERSION="2.13.5"' 'AUTOINSTALL="yes"' 'CLEAN="true"' 'BUILD_DEPENDS[0]="nvidia"' 'BUILT_MODULE_NAME[0]="nvidia-fs"' \
	'DEST_MODULE_LOCATION[0]="/updates/dkms"' 'MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build modules"' >$s/dkms.conf
scripts nvidia-fs 2.13.5; deb nvidia-fs-dkms 2.13.5~11.8.0-5 "dkms, nvidia-open-kernel-dkms"
cd $r; for f in *.deb; do dpkg-deb -f $f; printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' $f $(stat -c %s $f) $(sha256sum $f | cut -d' ' -f1); done >Packages
echo "deb [trusted=yes] file:$r ./" >/etc/apt/sources.list.d/debian.list; apt-get -q update
