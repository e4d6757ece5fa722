// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// trustInstalled refuses to continue where another user could have written the boot units, or the binary that they run as root.
// The install stage writes these files, as root's: before it only the folders count.
func trustInstalled(h host.View, e *converge.Engine) error {
	names, reinstall := stages.Installed(h), []string{"or install them again with a gpuadm that you trust: apply --install"}
	if agent.Installs(e) {
		names = append(stages.Units(), stages.Binary)
		for i := range names {
			names[i] = path.Dir(names[i])
		}
		reinstall = nil
	}
	if err := h.Trusted(names...); err != nil {
		t := converge.Distrust(h.Root(), err)
		t.Try = append(t.Try, reinstall...)
		return t
	}
	return nil
}

// trust refuses names of the machine that other users than root could change.
func trust(h host.View, names ...string) error {
	if err := h.Trusted(names...); err != nil {
		return converge.Distrust(h.Root(), err)
	}
	return nil
}

// warnOfWriters names the -f files that other users can change. gpuadm uses them: the operator chose them, and with sudo they are
// often in a home folder.
func (c *common) warnOfWriters() {
	for _, name := range c.files {
		if c.stat == nil || c.quiet || name == "-" {
			continue
		}
		if i, err := c.stat(name); err == nil {
			if who := writers(i, os.Geteuid(), loginUser); who != "" {
				printf(c.stderr, "gpuadm: warning: %s %s, and so decides what gpuadm does here\n", who, name)
			}
		}
	}
}

// writers says which users besides root and the caller can change a file, "" if no user can. A group that has its owner's number is that
// user's own, as useradd makes it (USERGROUPS_ENAB in login.defs(5), and Debian's adduser): with it comes a umask of 002.
func writers(i fs.FileInfo, caller int, login func() int) string {
	st, ok := i.Sys().(*syscall.Stat_t)
	switch {
	case i.Mode()&0o002 != 0:
		return "every user can write to"
	case !ok:
		return ""
	case i.Mode()&0o020 != 0 && st.Gid != st.Uid:
		return fmt.Sprintf("group %d can write to", st.Gid)
	case st.Uid != 0 && int(st.Uid) != caller && int(st.Uid) != login():
		return fmt.Sprintf("user %d owns", st.Uid)
	}
	return ""
}

// loginUser is who has logged in, and is another user by now, as the kernel knows it: sudo's variables can say anything
// (proc_pid_loginuid(5), pam_loginuid(8)). -1 if it does not know.
func loginUser() int {
	text, err := os.ReadFile("/proc/self/loginuid")
	if err != nil {
		return -1
	}
	uid, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return int(uid)
}
