// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

// denials are ways in which root may not do what root does: a process that lacks a capability, may not make a system call, or sees a
// read-only file system. In a shell of root's the next apply does it all. SELinux cannot be shown here: the hosts share the kernel of the
// machine they run on. See TestConfined for its words.
func denials() []trouble {
	// unit applies as a unit with some properties, its output and its exit code passed on.
	unit := func(properties ...string) []string {
		argv := []string{"systemd-run", "--quiet", "--wait", "--pipe"}
		for _, p := range properties {
			argv = append(argv, "--property="+p)
		}
		return append(argv, "gpuadm", "apply")
	}
	const fix = "try      run it without these limits"
	notRoots := func(n node) {
		n.t.Helper()
		n.Must("chown", "-R", "daemon:daemon", "/etc/containerd")
		n.Must("chmod", "700", "/etc/containerd")
	}
	return []trouble{
		{
			name: "no capability to override owners", make: notRoots,
			apply: []string{"setpriv", "--bounding-set", "-sys_admin,-dac_override,-dac_read_search", "--inh-caps", "-all", "gpuadm", "apply"},
			exit:  1, says: []string{"/etc/containerd", "permission denied", "lacks the capabilities CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN", fix},
		},
		{
			name: "no capability to change owners", make: notRoots,
			apply: unit("CapabilityBoundingSet=~CAP_CHOWN"),
			exit:  1, says: []string{"cannot write " + config, "owner", "operation not permitted", "lacks the capabilities CAP_CHOWN (", fix},
		},
		{
			// Root's own files need none, and systemd takes root's word.
			name: "no capabilities and root's own files", apply: unit("CapabilityBoundingSet=", "NoNewPrivileges=yes"),
			exit: 0, says: []string{"2 changes made"}, restarts: true,
		},
		{
			name: "everything is read-only", apply: unit("ProtectSystem=strict"),
			exit: 1, says: []string{"read-only file system", "its own mount namespace", "ProtectSystem=", fix},
		},
		{
			name: "etc is read-only for the unit", apply: unit("ReadOnlyPaths=/etc", "NoNewPrivileges=yes"),
			exit: 1, says: []string{"cannot write " + config, "read-only file system", "ReadOnlyPaths=", fix},
		},
		{
			name: "no renaming", apply: unit("SystemCallFilter=~rename renameat renameat2", "SystemCallErrorNumber=EPERM"),
			exit: 1, says: []string{"operation not permitted", "a seccomp filter", fix},
		},
		{
			// Without an error number the kernel ends the process at such a call, with SIGSYS: it cannot say anything.
			name: "killed for renaming", apply: unit("SystemCallFilter=~rename renameat renameat2"),
			exit: 255, // systemd-run's for a signal; the next run sweeps what it leaves
		},
		{
			name: "no way to systemd", apply: unit("RestrictAddressFamilies=AF_INET", "NoNewPrivileges=yes"),
			exit: 1, says: []string{"systemd does not answer", "address family not supported", "a seccomp filter", fix},
		},
	}
}
