// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// free waits until no other process is in a transaction, during which the database shows neither
// the old nor the new state.
func (a dnf) free(ctx context.Context, h host.Host) error {
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		if pid := holderOf(h, dnfLock); pid != "" {
			return nil, packages.Busy(h, pid, "dnf's lock", errors.New("another process holds the lock"))
		}
		return nil, nil
	})
	return err
}

// dnfLock has the id of the process that makes a transaction. dnf removes the file at the end; a
// killed dnf leaves it until the next transaction. Sources: ProcessLock in dnf/lock.py and
// Base.do_transaction in dnf/base.py of dnf's tree.
const dnfLock = "/var/lib/dnf/rpmdb_lock.pid"

// cutShort returns when a dnf that was killed began its transaction; the zero time if none was
// killed, or if a dnf runs now.
func cutShort(v host.View) time.Time {
	info, err := v.Stat(dnfLock)
	if err != nil || info.Size == 0 || holderOf(v, dnfLock) != "" {
		return time.Time{}
	}
	return info.Ctime
}

// holder returns the id of the process that holds one of dnf's locks; "" if none does.
func holder(v host.View) string {
	return cmp.Or(
		holderOf(v, dnfLock),
		holderOf(v, dnfCache+"/metadata_lock.pid"),
		holderOf(v, dnfCache+"/download_lock.pid"),
	)
}

// holderOf returns the id of the process that holds a lock of dnf's, if it still runs: a killed dnf
// leaves the file.
func holderOf(v host.View, lock string) string {
	data, err := v.ReadFile(lock)
	pid := strings.TrimSpace(string(data))
	if err != nil || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return ""
	}

	argv, err := v.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil || !sayPackager().Match(argv) {
		return "" // another process has that id now
	}
	return pid
}

// sayPackager matches the command line of a process that can hold the lock: dnf and yum are Python
// programs, others use dnf's library.
var sayPackager = pattern.Of(`dnf|yum|packagekit|PackageKit`)
