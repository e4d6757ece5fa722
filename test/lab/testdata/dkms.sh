#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A DKMS that builds nothing: it signs modules that the test has made, by the key that it is given, as scripts/sign-file.c does
# (struct module_signature in the kernel's include/linux/module_signature.h). It is for hosts without a compiler.
set -e
[ "$1" != --version ] || { echo dkms-lab; exit; }
[ "$1" = build ] || exit 0
while [ $# -gt 0 ]; do
	case "$1" in -v) v=$2 ;; -k) k=$2 ;; --dkmstree) tree=$2 ;; mok_signing_key=*) key=${1#*=} ;; mok_certificate=*) cert=${1#*=} ;; esac
	shift
done
to=$tree/nvidia/$v/$k/x86_64/module
mkdir -p "$to"
openssl cms -sign -binary -noattr -nocerts -signer "$cert" -inkey "$key" -outform DER -in "/root/nvidia-$v-$k.ko" -out /tmp/signature
n=$(stat -c %s /tmp/signature)
{
	cat "/root/nvidia-$v-$k.ko" /tmp/signature
	printf '\000\000\002\000\000\000\000\000'
	printf "\\000\\000\\$(printf %03o $((n / 256)))\\$(printf %03o $((n % 256)))"
	printf '~Module signature appended~\n'
} >"$to/nvidia.ko"
