// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Each host's daemons have 7 to 12 inotify instances, and all hosts run as the same user of one
// kernel, which allows 128. Beyond that containerd starts without its CRI plugin, and kubelet
// without its watches. Sources: inotify(7);
// https://kind.sigs.k8s.io/docs/user/known-issues/#pod-errors-due-to-too-many-open-files.
const (
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	inotifyNeed = 1024
)

// raiseInotifyLimit raises the limit, once in a process. The kernel has it until the next boot.
var raiseInotifyLimit = sync.OnceValue(func() error {
	text, err := os.ReadFile(inotifyFile)
	if err != nil {
		return fmt.Errorf("cannot read the limit of inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && limit >= inotifyNeed {
		return nil
	}

	if err := os.WriteFile(inotifyFile, []byte(strconv.Itoa(inotifyNeed)), 0o644); err != nil {
		return fmt.Errorf("cannot raise the limit of inotify instances for many hosts: %w", err)
	}
	return nil
})
