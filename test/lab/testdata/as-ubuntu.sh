set -e
k=$1 v=580.65.06 r=/srv/ubuntu; mkdir -p $r /srv/ko; cd /srv
cp /lib/modules/$k/updates/dkms/nvidia*.ko* ko/; for f in ko/*.xz; do [ ! -e $f ] || xz -d $f; done
openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500 -subj "/CN=Canonical Ltd. Kernel Module Signing (lab)" -keyout k.pem -outform DER -out k.der 2>/dev/null
for f in ko/*.ko; do $(ls /usr/lib/linux-kbuild-*/scripts/sign-file | head -1) sha256 k.pem k.der $f; done
deb() { # NAME VERSION DEPENDS; the files are in d already
	mkdir -p d/DEBIAN d/usr/share/lab; echo $2 >d/usr/share/lab/$1
	printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: lab <lab@example.invalid>\n%sDescription: a fake of Ubuntu'"'"'s\n' "$1" "$2" "${3:+Depends: $3
}" >d/DEBIAN/control
	dpkg-deb --root-owner-group -Zgzip -z1 --build d $r >/dev/null; rm -rf d
}
for n in nvidia-kernel-common-580-server nvidia-firmware-580-server-$v nvidia-headless-no-dkms-580-server-open libnvidia-compute-580-server \
	libnvidia-cfg1-580-server libnvidia-decode-580-server libnvidia-encode-580-server nvidia-utils-580-server nvidia-compute-utils-580-server; do
	case $n in
	libnvidia-compute-*)
		l=d/usr/lib/x86_64-linux-gnu; mkdir -p $l
		for s in libnvidia-ml libcuda; do touch $l/$s.so.$v; ln -s $s.so.$v $l/$s.so.1; done ;;
	nvidia-utils-*) mkdir -p d/usr/bin; touch d/usr/bin/nvidia-smi ;;
	nvidia-compute-utils-*) mkdir -p d/usr/bin; touch d/usr/bin/nvidia-persistenced ;;
	esac
	deb $n $v-0ubuntu1
done
mkdir -p d/usr/src d/DEBIAN; cp -r /usr/src/nvidia-$v d/usr/src/; deb nvidia-kernel-source-580-server-open $v-0ubuntu1
mkdir -p d/DEBIAN
printf '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\ndkms add nvidia/%s || :\ndkms install nvidia/%s -k %s\n' $v $v $k >d/DEBIAN/postinst
printf '#!/bin/sh\ndkms remove nvidia/%s --all || :\n' $v >d/DEBIAN/prerm; chmod 755 d/DEBIAN/p*
deb nvidia-dkms-580-server-open $v-0ubuntu1 "nvidia-kernel-source-580-server-open (= $v-0ubuntu1)"
for k in $k 5.15.0-1-other; do
	mkdir -p d/lib/modules/$k/kernel/nvidia-580-server-open d/DEBIAN; cp ko/*.ko d/lib/modules/$k/kernel/nvidia-580-server-open/
	for s in postinst postrm; do printf '#!/bin/sh\ndepmod %s\n' $k >d/DEBIAN/$s; chmod 755 d/DEBIAN/$s; done
	deb linux-modules-nvidia-580-server-open-$k ${k%-*}.1
done
