// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// live is the running machine.
type live struct {
	*Files
	*nvmlDoor
	runner runner
	units  systemd
	lock   runLock
	cuda   *cudaDoor
}

func newLive(disk realDisk) *live {
	files := NewFiles(ownRoot{disk})
	return &live{Files: files, runner: newRunner(), units: systemd{files: files}, nvmlDoor: newNVML(files), cuda: newCUDA(files)}
}

func (l *live) Root() string   { return "/" }
func (l *live) Live() bool     { return true }
func (l *live) Runs() bool     { return true }
func (l *live) Now() time.Time { return time.Now() }

func (l *live) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return l.runner.ask(ctx, argv)
}

func (l *live) Do(ctx context.Context, argv ...string) ([]byte, error) {
	return l.runner.do(ctx, argv, l.lock.file())
}

func (l *live) Unit(ctx context.Context, name string) (Unit, error) { return l.units.unit(ctx, name) }

func (l *live) SetUnit(ctx context.Context, name string, to UnitChange) error {
	return l.units.set(ctx, name, to)
}

func (l *live) Terminate(pid int) error {
	if pid <= 1 { // kill(2): 0 and less are groups of processes
		return fmt.Errorf("cannot end process %d: it is no process of a program", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	return nil
}

func (l *live) Lock() (func(), error) {
	unlock, err := l.lock.take(lockFile)
	if err == nil {
		sweepScratch(scratchParent)
	}
	return unlock, err
}

// Pause waits, or returns the context's error if that ends before.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
