// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// child is a process that asks the driver.
type child struct {
	pid    int
	answer *os.File
}

// A sign shows that a child is at work, and not only waiting. It compares a number with what it was
// a limit before.
type sign func(c child, before int, limit time.Duration) (now int, isSign bool)

// hasWritten is the sign of a child that says how far it has come.
func hasWritten(c child, before int, _ time.Duration) (now int, isSign bool) {
	info, err := c.answer.Stat()
	if err != nil {
		return before, false
	}
	now = int(info.Size())
	return now, now > before
}

// hasComputed is the sign of a child that calls a library which says nothing meanwhile: it has used
// a tenth of the processor's time. A call that hangs in the kernel uses none.
func hasComputed(c child, before int, limit time.Duration) (now int, isSign bool) {
	now, err := processorTicks(c.pid)
	if err != nil {
		return before, false
	}
	const ticks = time.Second / 100 // USER_HZ: time(7)
	return now, now-before >= int(limit/ticks/10)
}

// processorTicks is the processor's time that a process has used: utime and stime, the fields 14
// and 15 of proc_pid_stat(5).
func processorTicks(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may have spaces
	fields := strings.Fields(after)                // from the third on
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields)+2)
	}

	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return user + system, err
}
