# SPDX-License-Identifier: Apache-2.0
#
# The first half of a session, on the other machine: says what it is, takes the program from standard input, and runs it as root.
# It is one function: a shell must have read all of it before the program's bytes follow on the same standard input. The other side
# sends them only after the first answer, since a shell may read ahead.
sum() { sha256sum "$1" </dev/null | cut -d ' ' -f 1; }
bring() {
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
	export PATH LC_ALL
	umask 077
	dir= there=$(command -v gpuadm) && has=$(sum "$there")
	trap '[ -z "$dir" ] || rm -rf "$dir"' 0
	trap 'exit 1' 1 2 13 15
	if [ "$(id -u)" = 0 ]; then
		as=root
		set -- /run
	elif sudo -n true </dev/null 2>/dev/null; then
		as=sudo
	else
		as=nothing
	fi
	# The folder's name has this machine, since a home may be another one's too, and this boot: a power cut has left the copy of an earlier one.
	boot=
	read -r boot 2>/dev/null </proc/sys/kernel/random/boot_id
	name=.gpuadm-ssh.$(uname -n)-
	for in in "$@" "${HOME:-/root}" "${XDG_RUNTIME_DIR:-/run}" /var/tmp /tmp /dev/shm; do
		[ -d "$in" ] && [ -w "$in" ] || continue
		set -- $(df -Pk "$in" 2>/dev/null | tail -n 1)
		# SERVER:/PATH is NFS, where root of this machine may have no rights. The program has less than 40 MB.
		case $1 in *:*) continue ;; esac
		# Not *: the name of another machine, gpu-2, may begin with this one's, gpu.
		for old in "$in/$name"????????.??????; do
			case $old in "$in/$name${boot%%-*}."*) ;; *) rm -rf "$old" 2>/dev/null ;; esac
		done
		[ "${4:-0}" -gt 40000 ] || continue
		dir=$(mktemp -d "$in/$name${boot%%-*}.XXXXXX" 2>/dev/null) || continue
		# A folder may be mounted noexec: Debian's initramfs mounts /run so.
		printf '#!/bin/sh\n' >"$dir/gpuadm" && chmod 700 "$dir/gpuadm" && "$dir/gpuadm" </dev/null 2>/dev/null && break
		rm -rf "$dir"
		dir=
	done
	echo "gpuadm-ssh machine $(uname -m) $as ${has:-none} ${dir:-none}"
	read -r size digest || exit 1
	program=$dir/gpuadm
	if [ "$size" = 0 ]; then
		program=$there
		rm -rf "$dir"
		dir=
	elif ! head -c "$size" >"$program" || [ "$(sum "$program")" != "$digest" ]; then
		echo "gpuadm-ssh broken"
		exit 1
	fi
	echo "gpuadm-ssh brought"
	set --
	[ "$as" = root ] || set -- sudo -n --
	# In a unit of its own the run outlives the connection, and this shell; then the unit removes what was brought. SELinux lets systemd
	# run no program that lies in a home folder, or in one for temporary files; a program in /usr/bin it runs without confinement, and
	# that may run any.
	# Sources: https://github.com/kardianos/service/pull/199, https://github.com/SELinuxProject/selinux/issues/492
	if [ -d /run/systemd/system ]; then
		trap '' 1 13 15
		set -- "$@" systemd-run --quiet --pipe --wait --collect --unit="gpuadm-ssh-$$-$(date +%s)" --description="gpuadm, by gpuadm ssh" \
			--property=KillMode=process ${dir:+"--property=ExecStopPost=/bin/rm -rf \"$dir\""} /usr/bin/env
	fi
	"$@" "$program" serve-ssh
	exit
}
bring
